"""Takes a step's result in: tokens appended, full blocks sealed, finished requests ended, all of it reported."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

from engine.errors import InvariantError
from engine.request import FinishReason, SequenceId
from engine.scheduler.beams import Candidates
from engine.scheduler.flight import Flight
from engine.scheduler.outputs import OutputExtras, RequestOutput
from engine.scheduler.roster import Roster
from engine.scheduler.searching import branch
from engine.scheduler.sequence import SequenceState, State
from engine.step import SequenceStep, StepResult, TokenLogprobs

Sampled = tuple[int, TokenLogprobs | None]

_new = tuple.__new__
_NOTHING_ELSE = RequestOutput(SequenceId(0))[5:]  # of news of a token: what is behind the output's index


class Commit:
    """Applies results to sequences. Keeps the token counters of the core."""

    def __init__(self, roster: Roster) -> None:
        self.prompt_tokens = 0  # computed, recomputed ones included
        self.output_tokens = 0  # of requests that were there to take them
        self._candidates: dict[SequenceState, Candidates] = {}  # of each beam, in this step
        self._roster = roster
        self._memory = roster.memory

    def take(self, flight: Flight, result: StepResult, now: float) -> list[RequestOutput]:
        """Apply a result to the sequences of its step, decodes first; return all news since the last call."""
        planned, parts, num_decodes = flight.planned, flight.plan.sequences, flight.num_decodes
        asked = num_decodes + sum(part.sampling is not None for part in parts[num_decodes:])
        token_ids, logprobs = result.token_ids, result.logprobs
        if len(token_ids) != asked or len(logprobs) not in (0, asked):
            raise InvariantError(
                f"the step returned {len(token_ids)} tokens and {len(logprobs)} log-probabilities, not {asked}"
            )
        outputs = self._roster.take_events()
        self.output_tokens += asked
        if logprobs or self._roster.searches:
            self._decodes_of_all_kinds(planned[:num_decodes], token_ids, logprobs, now, outputs)
        else:
            self._decodes(planned[:num_decodes], token_ids, now, outputs)
        sampled = zip(token_ids[num_decodes:], logprobs[num_decodes:] or repeat(None), strict=False)
        for sequence, part in zip(planned[num_decodes:], parts[num_decodes:], strict=True):
            if part.options is not None and part.options.prompt_logprobs >= 0:
                self._take_scores(sequence, part, result.prompt_logprobs, now, outputs)
            self._chunk(sequence, part, sampled, now, outputs)
            if part.options is not None and part.options.pool:
                self._take_embedding(sequence, part, result.pooled, now)
        if self._candidates:
            self._search(now, outputs)
        outputs += self._roster.take_events()
        return outputs

    def force(self, sequence: SequenceState, token_ids: Sequence[int], now: float) -> None:
        """Add tokens that nobody sampled, for nothing else could come, and report them. They cost what others do."""
        if not token_ids:
            return
        tenant = sequence.tenant
        sequence.tokens += token_ids
        sequence.charged = len(sequence.tokens)
        tenant.counter += tenant.output_cost * len(token_ids)
        tenant.output_tokens += len(token_ids)
        self.output_tokens += len(token_ids)
        self._roster.report(self._announcement(sequence, now, tuple(token_ids)))

    def _decodes(
        self, sequences: Sequence[SequenceState], token_ids: Sequence[int], now: float, outputs: list[RequestOutput]
    ) -> None:
        """Give each decode its token. The hot loop: it runs for every running sequence in every step."""
        memory = self._memory
        block_size, block_bytes = memory.shape.block_size, memory.shape.block_bytes
        for sequence, token in zip(sequences, token_ids, strict=False):
            table = sequence.table
            if table is None:
                self._late(sequence, token, None, now, outputs)
                continue
            tokens, tenant = sequence.tokens, sequence.tenant
            computed = len(tokens)  # by this step; the next one may be planned already
            if not computed % block_size:
                memory.seal(table, computed, tokens, now)
            tokens.append(token)  # what `_append` does, without the call
            tenant.counter += tenant.output_cost
            tenant.output_tokens += 1
            if token in sequence.stop_ids or computed + 1 >= sequence.max_length:
                self._finish(sequence, token, None, now)
            elif sequence.announced:
                held = sequence.kv_block_seconds + table.block_seconds + table.num_metered * (now - table.since)
                handle, index, times = sequence.handle, sequence.index, sequence.num_preemptions
                # In the order of RequestOutput's fields: a call of it takes twice as long.
                news = (handle, (token,), held * block_bytes, times, index, *_NOTHING_ELSE)
                outputs.append(_new(RequestOutput, news))
            else:
                outputs.append(self._announcement(sequence, now, (token,)))

    def _decodes_of_all_kinds(
        self,
        sequences: Sequence[SequenceState],
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None],
        now: float,
        outputs: list[RequestOutput],
    ) -> None:
        """Give each decode its token where some are beams or have log-probabilities to report: the rest goes fast."""
        plain: list[SequenceState] = []
        plain_token_ids: list[int] = []
        for sequence, token, one in zip(sequences, token_ids, logprobs or repeat(None), strict=False):
            table = sequence.table
            if one is None and sequence.beams is None:
                plain.append(sequence)
                plain_token_ids.append(token)
            elif table is None:
                self._late(sequence, token, one, now, outputs)
            else:
                self._memory.seal(table, len(sequence.tokens), sequence.tokens, now)
                self._append(sequence, token, one, now, outputs)
        self._decodes(plain, plain_token_ids, now, outputs)

    def _chunk(
        self,
        sequence: SequenceState,
        part: SequenceStep,
        sampled: Iterator[Sampled],
        now: float,
        outputs: list[RequestOutput],
    ) -> None:
        """Take a prefill chunk in, and the first token after the last one."""
        self.prompt_tokens += len(part.token_ids)
        chosen = None if part.sampling is None else next(sampled)
        table, computed = sequence.table, part.start + len(part.token_ids)
        if table is None:
            if chosen is not None:
                self._late(sequence, *chosen, now, outputs)
            return
        self._memory.seal(table, computed, sequence.tokens, now)
        if computed == len(sequence.tokens):
            self._roster.prefills.end(sequence)
        if chosen is not None:
            self._append(sequence, *chosen, now, outputs)
        elif not sequence.announced:
            outputs.append(self._announcement(sequence, now))

    def _late(
        self,
        sequence: SequenceState,
        token: int,
        logprobs: TokenLogprobs | None,
        now: float,
        outputs: list[RequestOutput],
    ) -> None:
        """Take a token of a sequence that has left while the step ran: where it is to come back, it is its own still.

        Nobody sees or pays for one of a request that has ended, or of a beam, whose search starts again.
        """
        if sequence.state is State.ENDED or sequence.beams is not None:
            self.output_tokens -= 1
            return
        self._append(sequence, token, logprobs, now, outputs)
        sequence.charged = len(sequence.tokens)

    def _append(
        self,
        sequence: SequenceState,
        token: int,
        logprobs: TokenLogprobs | None,
        now: float,
        outputs: list[RequestOutput],
    ) -> None:
        """Add a sampled token and report it; end the sequence when it was the last one. A beam waits for the others."""
        if sequence.beams is not None:
            if logprobs is None:
                raise InvariantError(f"the step returned no log-probabilities for a beam of request {sequence.handle}")
            self._candidates[sequence] = logprobs.top
            return
        tokens, tenant = sequence.tokens, sequence.tenant
        tokens.append(token)
        tenant.counter += tenant.output_cost
        tenant.output_tokens += 1
        if token in sequence.stop_ids or len(tokens) >= sequence.max_length:
            self._finish(sequence, token, logprobs, now)
        elif logprobs is None:
            outputs.append(self._announcement(sequence, now, (token,)))
        else:
            extras = _extras(logprobs)
            outputs.append(self._announcement(sequence, now, (token,), (logprobs.chosen,), extras=extras))

    def _search(self, now: float, outputs: list[RequestOutput]) -> None:
        """Choose among the candidates of each request's beams, once all of them are there."""
        candidates, self._candidates = self._candidates, {}
        for group in {sequence.handle: sequence.beams for sequence in candidates}.values():
            assert group is not None, "only beams have candidates"
            before = group.num_counted
            found = [candidates[beam] for beam in group.members]  # they run on reserved blocks: none was left out
            branches = group.advance(found, now)
            self.output_tokens += (group.num_counted - before) * group.width - len(found)
            if group.num_counted == before:  # an earlier run had come as far
                computed = group.leader.computed
                self._roster.interference.computed(group.leader, computed - 1, computed, len(found))
            if branches:
                branch(self._roster, group, branches, now)
                outputs.append(self._announcement(group.leader, now, unseen_tokens=group.take_unseen()))
            else:
                self._roster.finish(group.leader, FinishReason.LENGTH, now)

    def _take_scores(
        self,
        sequence: SequenceState,
        part: SequenceStep,
        found: Mapping[SequenceId, tuple[TokenLogprobs, ...]],
        now: float,
        outputs: list[RequestOutput],
    ) -> None:
        """Report the log-probabilities of a chunk of the prompt, without those that an earlier run has reported.

        Those of a sequence that has left while the step ran are as good: it will go on behind them.
        """
        if sequence.state is State.ENDED:
            return
        first = part.start + 1  # the first token that a token of the chunk is followed by
        scores = found.get(part.sequence, ())[max(0, sequence.unscored - first) :]
        if first > sequence.unscored or not scores:
            raise InvariantError(
                f"the log-probabilities of request {sequence.handle}'s prompt are known up to token"
                f" {sequence.unscored}, and its step returned {len(scores)} from {first} on"
            )
        sequence.unscored += len(scores)
        outputs.append(self._announcement(sequence, now, extras=OutputExtras(prompt=scores)))

    def _take_embedding(
        self, sequence: SequenceState, part: SequenceStep, found: Mapping[SequenceId, tuple[float, ...]], now: float
    ) -> None:
        """End a request to embed with the last chunk of its prompt, even if it has lost its place while that ran."""
        if part.start + len(part.token_ids) < sequence.num_prompt or sequence.state is State.ENDED:
            return
        vector = found.get(part.sequence)
        if vector is None:
            raise InvariantError(f"the step returned no embedding for request {sequence.handle}")
        self._roster.finish(sequence, FinishReason.STOP, now, extras=OutputExtras(embedding=vector))

    def _finish(self, sequence: SequenceState, token: int, logprobs: TokenLogprobs | None, now: float) -> None:
        reason = FinishReason.STOP if token in sequence.stop_ids else FinishReason.LENGTH
        if logprobs is None:
            self._roster.finish(sequence, reason, now, token_ids=(token,))
        else:
            chosen, extras = (logprobs.chosen,), _extras(logprobs)
            self._roster.finish(sequence, reason, now, token_ids=(token,), logprobs=chosen, extras=extras)

    def _announcement(
        self,
        sequence: SequenceState,
        now: float,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[float, ...] = (),
        unseen_tokens: int = 0,
        extras: OutputExtras | None = None,
    ) -> RequestOutput:
        """Report tokens and, the first time, that the request runs and how many tokens it may generate."""
        first, sequence.announced = not sequence.announced, True
        return RequestOutput(
            sequence=sequence.handle,
            token_ids=token_ids,
            kv_byte_seconds=sequence.held(now) * self._memory.shape.block_bytes,
            num_preemptions=sequence.num_preemptions,
            output_index=sequence.index,
            admitted_max_tokens=max(1, sequence.max_tokens) if first else 0,
            queue_seconds=sequence.queue_seconds if first else 0.0,
            cached_tokens=sequence.cached_tokens if first else 0,
            logprobs=logprobs,
            unseen_tokens=unseen_tokens,
            extras=extras,
        )


def _extras(logprobs: TokenLogprobs) -> OutputExtras | None:
    """Return what is to be told of a token beside its own log-probability."""
    return OutputExtras(top=(logprobs.top,)) if logprobs.top else None
