"""Requests whose outputs must follow a grammar: how they get to one, and how they are led along it.

    submit ── the grammar is not at hand ─▶ HELD, while a thread prepares it ─▶ in line, with a constraint
    commit ── a token has come ─▶ the constraint takes it and makes its next mask: at once where that has taken next
                                  to nothing lately, else in a thread (mask_threads.py)

Where the grammar leaves one text alone to come next, its tokens are the output's without being sampled: all of them are
computed in the step of the next one that is. That is what makes the output of a schema faster than a free one.

A plan only reads masks that are there, so nothing in it can fail. Nobody waits for a grammar but who asks for it.
"""

from collections.abc import Collection, Iterable

from engine.constraints.base import Grammars, Preparation
from engine.errors import GrammarError
from engine.request import FinishReason, GenerationRequest, RefusalCode
from engine.scheduler.commit import Commit
from engine.scheduler.mask_threads import MaskThreads
from engine.scheduler.outputs import Refusal, RequestOutput
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState, State

PREPARE_SECONDS = 30.0  # how long a request waits for its grammar
LOOK_SECONDS = 0.002  # how often an idle loop looks whether one is ready, or a mask
SMALL_SECONDS = 0.0001  # a constraint whose masks have taken no longer makes the next one at once
SLOW_SECONDS = 0.002  # one whose masks have taken longer is not waited for
MOST_FORCED = 32  # tokens at a time that are not sampled
STEP_SECONDS = 0.004  # for the masks of one step that are waited for, and the same again for those made at once


class Constraining:
    """Knows who waits for a grammar."""

    def __init__(self, roster: Roster, commit: Commit, grammars: Grammars | None) -> None:
        self.is_used = False  # there has been a grammar
        self._roster = roster
        self._commit = commit
        self._grammars = grammars
        self._waiting: dict[SequenceState, Preparation] = {}
        self._threads = MaskThreads()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their grammars, and some that have ended since they did."""
        return len(self._waiting)

    @property
    def late(self) -> Collection[SequenceState]:
        """Sequences that no plan may have sample: their masks are not there yet."""
        return self._threads.late

    def prepare(self, request: GenerationRequest) -> Preparation | None:
        """Begin to prepare the grammar of a request; None: it has none, or none can be had."""
        grammar = request.sampling.grammar
        if grammar is None or self._grammars is None or request.beams is not None or request.embed:
            return None
        self.is_used = True
        return self._grammars.prepare(request.tenant, grammar)

    def refusal(self, request: GenerationRequest, preparation: Preparation | None) -> Refusal | None:
        """Return why a request with a grammar is not taken."""
        if request.sampling.grammar is None:
            return None
        if preparation is None:
            message = (
                "This worker follows no grammars."
                if self._grammars is None
                else "Neither a beam search nor an embedding follows a grammar: leave one of the two out."
            )
            return Refusal(RefusalCode.INVALID, message, "grammar")
        return Refusal(RefusalCode.INVALID, preparation.problem, "grammar") if preparation.problem else None

    def enter(self, sequence: SequenceState, preparation: Preparation | None, *, is_prepared: bool) -> None:
        """Give a request with a grammar its constraint, or let it wait for it where the caller holds it for that.

        What the caller has found decides, and not what the thread has done since.
        """
        if preparation is None:
            return
        if is_prepared:
            sequence.constraint = preparation.constraint(sequence.stop_ids)
        else:
            self._waiting[sequence] = preparation

    def awaits(self, sequence: SequenceState) -> bool:
        """Say whether a request waits for its grammar."""
        return sequence in self._waiting

    def take_prepared(self) -> list[tuple[SequenceState, str]]:
        """Return who waits no longer, each with what is wrong with its grammar; empty: it has its constraint now."""
        taken = []
        for sequence, preparation in list(self._waiting.items()):
            if sequence.state is State.ENDED:
                del self._waiting[sequence]
            elif preparation.is_done:
                del self._waiting[sequence]
                if not preparation.problem:
                    sequence.constraint = preparation.constraint(sequence.stop_ids)
                taken.append((sequence, preparation.problem))
        return taken

    def follow(self, sequences: Iterable[SequenceState], now: float) -> list[RequestOutput]:
        """Let constraints take the tokens that have come, and end who cannot go on; return the news of those."""
        left = STEP_SECONDS
        for sequence in sequences:
            constraint = sequence.constraint
            if constraint is None or not sequence.generated or sequence.state is State.ENDED:
                continue
            if constraint.seconds > SMALL_SECONDS or left <= 0:
                self._threads.give(sequence, _most_forced(sequence), slow=constraint.seconds > SLOW_SECONDS)
                continue
            try:
                forced = constraint.follow(sequence.tokens, sequence.num_prompt, _most_forced(sequence))
            except GrammarError as error:
                self._fail(sequence, str(error), now)
            else:
                self._commit.force(sequence, forced, now)
            left -= constraint.seconds
        if self._threads.late:
            self._threads.wait(STEP_SECONDS)
            self.take_masks(now)
        return self._roster.take_events()

    def take_masks(self, now: float) -> None:
        """Let sequences go on whose masks are there now, and end those that cannot."""
        for sequence, forced, problem in self._threads.take():
            if sequence.state is State.ENDED:
                continue
            if problem:
                self._fail(sequence, problem, now)
            else:
                self._commit.force(sequence, forced, now)

    def _fail(self, sequence: SequenceState, problem: str, now: float) -> None:
        """End an output that cannot go on: its grammar is the request's, and so is the fault."""
        self._roster.finish(sequence, FinishReason.ERROR, now, message=f"{problem}: make it simpler", field="grammar")


def _most_forced(sequence: SequenceState) -> int:
    """Return how many tokens may come unsampled: none whose choice or score anybody asks for, nor the last one."""
    sampling = sequence.sampling
    if sampling.num_logprobs >= 0 or sampling.penalises or sampling.logit_bias:
        return 0
    return min(MOST_FORCED, max(0, sequence.max_length - len(sequence.tokens) - 1))
