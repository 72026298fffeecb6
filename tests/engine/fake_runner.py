"""A runner without a model: it stores (namespace, position, token) in slots and emits a hash of what it reads back.

Reads go through its own copy of the block table, as a kernel's would. A block that is stale, foreign, poisoned or in
the wrong place therefore shows as a wrong token and as wrong log-probabilities; `expected_tokens` and `distribution`
say which are right.

What is swapped to host memory is kept the same way, slab by slab, so that a wrong slab shows as a wrong token, too.
Transfers end late and out of order where a test says so (`lateness`): until then what they write holds nonsense, and
what they read is read at the very end, so that any use before its time shows as a wrong token.

What `StepOptions` asks of a choice changes the token as it does with a model: `expected_tokens` works it out anew from
the whole history.

With `held_back` it is like a device beside the host: a step that is launched is computed no sooner than it is waited
for, in launch order, with what its plan says by then. A placeholder becomes the token of the step before it.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from engine.constraints.base import Constraint
from engine.request import BlockId, SamplingParams, SlabId
from engine.step import CacheShape, SequenceStep, StepPlan, StepResult, TokenLogprobs, Transfer, TransferDone
from tests.engine.shaping_reference import is_shaped, shape

_PRIME = (1 << 61) - 1
_EMPTY = -1
_NONSENSE = -7
_COPY_SECONDS = 1e-6  # of a block
_PLAIN = SamplingParams()
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class Identity(NamedTuple):
    """Who may read a slot that a sequence has written: any sequence of the same number."""

    own: int
    head: int = 0  # of the first `num_head` tokens
    num_head: int = 0


def alone(part: SequenceStep) -> Identity:
    """Let a sequence read what it wrote itself, and nothing else."""
    return Identity(part.sequence)


class FakeRunner:
    """Implements `engine.step.Runner` over integers."""

    def __init__(
        self,
        shape: CacheShape,
        *,
        vocab_size: int = 1000,
        seconds: float = 0.001,
        identify: Callable[[SequenceStep], Identity] = alone,
        held_back: bool = False,
        lateness: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start with empty slots. `lateness`: asked of each transfer at each look, whether it is still under way."""
        self._shape = shape
        self._identify = identify
        self._vocab_size = vocab_size
        self._seconds = seconds
        self._table = np.zeros((shape.max_rows, shape.max_columns), dtype=np.int64)
        slots = (shape.num_blocks, shape.block_size)
        self._owner = np.full(slots, _EMPTY, dtype=np.int64)
        self._position = np.full(slots, _EMPTY, dtype=np.int64)
        self._token = np.full(slots, _EMPTY, dtype=np.int64)
        self._slabs = np.full((shape.num_slabs, 3, shape.block_size), _EMPTY, dtype=np.int64)  # of the same three
        self._sums = np.full((shape.max_rows, 2), np.nan)  # of prompts to embed, by row
        self._lateness = lateness
        self.begun: list[Transfer] = []  # all that ever were
        self._transfers: list[tuple[Transfer, Launched | None]] = []  # under way, each with the step that it is after
        self.num_steps = 0
        self._held_back = held_back
        self._launched: deque[Launched] = deque()  # not waited for, in order
        self._sampled: tuple[int, ...] = ()  # of the last computed step

    @property
    def shape(self) -> CacheShape:
        """The pool's geometry."""
        return self._shape

    @property
    def runs_ahead(self) -> bool:
        """Whether it holds results back."""
        return self._held_back

    def launch(self, plan: StepPlan) -> "Launched":
        """Take a step; compute it at once unless results are held back."""
        assert len(self._launched) < 2, "two steps have not been waited for"
        assert not any(map(_is_ahead, plan.sequences)) or self._launched, "a placeholder of a step that is over"
        _check_moves(plan)
        self.num_steps += 1
        step = Launched(self, plan, [self._identify(part) for part in plan.sequences])
        self._launched.append(step)
        if not self._held_back:
            self._compute(step)
        return step

    def finish(self, step: "Launched") -> StepResult:
        """Compute what was launched up to this step, and let go of it."""
        assert self._launched.popleft() is step, "steps are waited for in their order, each once"
        if step.result is None:
            self._compute(step)
        assert step.result is not None
        return step.result

    def wipe(self, slabs: Sequence[SlabId]) -> None:
        """Empty slabs, once what was launched is computed."""
        self._slabs[list(slabs)] = _EMPTY

    def wipe_blocks(self, blocks: Sequence[BlockId]) -> None:
        """Empty blocks, after the steps that were launched."""
        last = self._launched[-1] if self._launched else None
        if last is None or last.result is not None:
            self._empty(blocks)
        else:
            last.wipes += blocks

    def copy(self, transfer: Transfer) -> None:
        """Take a transfer; what it writes is nonsense until it is done."""
        self.begun.append(transfer)
        last = self._launched[-1] if self._launched else None
        if last is None or last.result is not None:
            self._spoil(transfer)
        else:
            last.transfers.append(transfer)
        self._transfers.append((transfer, last))

    def _spoil(self, transfer: Transfer) -> None:
        for block, slab in transfer.moves:
            if transfer.is_store:
                self._slabs[slab] = _NONSENSE
            else:
                for slots in (self._owner, self._position, self._token):
                    slots[block] = _NONSENSE

    def copied(self) -> list[TransferDone]:
        """Make the transfers that are not late, in any order, and return them."""
        ready = [one for one in self._transfers if one[1] is None or one[1].result is not None]
        over = [one for one in reversed(ready) if not self._lateness()]
        for transfer, _ in over:
            for block, slab in transfer.moves:
                if transfer.is_store:
                    self._store(block, slab)
                else:
                    self._load(slab, block)
        done = {transfer.number for transfer, _ in over}
        self._transfers = [one for one in self._transfers if one[0].number not in done]
        return [TransferDone(transfer.number, len(transfer.moves) * _COPY_SECONDS) for transfer, _ in over]

    def slab_memory(self, slab: SlabId) -> memoryview:
        """Return the bytes of a slab."""
        return memoryview(self._slabs[slab].reshape(-1).view(np.uint8))

    @property
    def slab_bytes(self) -> int:
        """What `slab_memory` has."""
        return 3 * 8 * self._shape.block_size

    def stored(self, block: int) -> list[int]:
        """Return the tokens in a block's slots; -1 where a slot does not hold the position that a block starts with."""
        return self._tokens(self._owner[block], self._position[block], self._token[block])

    def swapped(self, slab: int) -> list[int]:
        """Return the tokens in a slab, as `stored` does of a block."""
        return self._tokens(*self._slabs[slab])

    def slab_owners(self) -> set[int]:
        """Return whose tokens are in any slab."""
        return set(self._slabs[:, 0].ravel().tolist()) - {_EMPTY}

    def contents(self) -> bytes:
        """Return what lies in the token slots of all blocks and slabs, used or not, eight bytes a token."""
        return self._token.tobytes() + self._slabs[:, 2].tobytes()

    def block_owners(self) -> set[int]:
        """Return whose tokens are in any block."""
        return set(self._owner.ravel().tolist()) - {_EMPTY}

    def _tokens(self, owner: np.ndarray, position: np.ndarray, token: np.ndarray) -> list[int]:
        right = position == np.arange(position[0], position[0] + self._shape.block_size)
        return np.where(right & (owner == owner[0]), token, -1).tolist()

    def _compute(self, step: "Launched") -> None:
        """Make the plan's edits in their order, then write all slots and read them back, sequence by sequence."""
        plan, pages = step.plan, (self._owner, self._position, self._token)
        for block, slab in plan.stores:
            self._store(block, slab)
        for block in plan.poison:
            self._owner[block] = _EMPTY
            self._position[block] = _EMPTY
        self._empty(plan.unfilled)
        for write in plan.table_writes:
            self._table[write.row, write.column : write.column + len(write.blocks)] = write.blocks
        for block, slab in plan.loads:
            self._load(slab, block)
        for source, target in plan.copies:
            for slots in pages:
                slots[target] = slots[source]
        for part, who in zip(plan.sequences, step.identities, strict=True):
            self._write(part, who)
        pairs = zip(plan.sequences, step.identities, strict=True)
        read = [(part, self._read(part, who)) for part, who in pairs if part.sampling is not None]
        tokens = tuple(self._choose(mixed, part) for part, mixed in read)
        logprobs: tuple[TokenLogprobs | None, ...] = tuple(
            self._logprobs(part, mixed, token) for (part, mixed), token in zip(read, tokens, strict=True)
        )
        asked = any(one is not None for one in logprobs)
        special = [(part, who) for part, who in zip(plan.sequences, step.identities, strict=True) if part.options]
        out, back = len(plan.stores) * _COPY_SECONDS, len(plan.loads) * _COPY_SECONDS
        step.result = StepResult(
            token_ids=tokens,
            seconds=self._seconds + out + back,
            logprobs=logprobs if asked else (),
            store_seconds=out,
            load_seconds=back,
            prompt_logprobs={part.sequence: one for part, who in special if (one := self._score(part, who))},
            pooled={part.sequence: one for part, who in special if (one := self._pool(part, who))},
        )
        self._empty(step.wipes)
        for transfer in step.transfers:
            self._spoil(transfer)
        self._sampled = tokens

    def _store(self, block: BlockId, slab: SlabId) -> None:
        for kept, slots in zip(self._slabs[slab], (self._owner, self._position, self._token), strict=True):
            kept[:] = slots[block]

    def _load(self, slab: SlabId, block: BlockId) -> None:
        for kept, slots in zip(self._slabs[slab], (self._owner, self._position, self._token), strict=True):
            slots[block] = kept

    def _empty(self, blocks: Sequence[BlockId]) -> None:
        for slots in (self._owner, self._position, self._token):
            slots[list(blocks)] = _EMPTY

    def _write(self, part: SequenceStep, who: Identity) -> None:
        positions = np.arange(part.start, part.start + len(part.token_ids))
        blocks = self._table[part.row, positions // self._shape.block_size]
        slots = positions % self._shape.block_size
        self._owner[blocks, slots] = _owners(who, positions)
        self._position[blocks, slots] = positions
        self._token[blocks, slots] = [one if one >= 0 else self._sampled[-1 - one] for one in part.token_ids]

    def _read(self, part: SequenceStep, who: Identity) -> int:
        """Return a number of what the table leads to: a slot that is not the sequence's own changes it."""
        tokens, num_wrong = self._seen(part, who)
        return _mix(tokens) + num_wrong

    def _seen(self, part: SequenceStep, who: Identity) -> tuple[np.ndarray, int]:
        """Return the tokens that the table leads to, and how many slots are not the sequence's own."""
        positions = np.arange(part.start + len(part.token_ids))
        first = len(part.hosted) * self._shape.block_size  # slot of the device; those before it are in slabs
        assert first <= part.start, "a step writes to a block that is in host memory alone"
        blocks = self._table[part.row, positions[first:] // self._shape.block_size]
        slots = positions[first:] % self._shape.block_size
        pages = (self._owner, self._position, self._token)
        slabs = self._slabs[list(part.hosted)].swapaxes(0, 1).reshape(3, first)
        read = [np.concatenate([slab, page[blocks, slots]]) for slab, page in zip(slabs, pages, strict=True)]
        foreign = int((read[0] != _owners(who, positions)).sum())
        misplaced = int((read[1] != positions).sum())
        return read[2], foreign + misplaced

    def _score(self, part: SequenceStep, who: Identity) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of the prompt's tokens that follow those of a chunk."""
        options = part.options
        if options is None or options.prompt_logprobs < 0:
            return ()
        (tokens, num_wrong), found = self._seen(part, who), []
        followers = [*part.token_ids[1:], *([options.prompt_next] if options.prompt_next >= 0 else [])]
        for place, token in zip(range(part.start, options.num_prompt - 1), followers, strict=False):
            values = _distribution(_mix(tokens[: place + 1]) + num_wrong, self._vocab_size)
            found.append(TokenLogprobs(float(values[token]), most_likely(values, options.prompt_logprobs)))
        assert found, "a chunk that no token of the prompt follows is asked for log-probabilities"
        return tuple(found)

    def _pool(self, part: SequenceStep, who: Identity) -> tuple[float, ...]:
        """Add up what the chunk's slots hold, see `embedding`; return the mean with the prompt's last token."""
        options = part.options
        if options is None or not options.pool:
            return ()
        tokens, num_wrong = self._seen(part, who)
        end = part.start + len(part.token_ids)
        sums = _sums(tokens[part.start :], part.start) + num_wrong
        self._sums[part.row] = sums if part.start == 0 else self._sums[part.row] + sums
        return tuple((self._sums[part.row] / options.num_prompt).tolist()) if end == options.num_prompt else ()

    def _choose(self, mixed: int, part: SequenceStep) -> int:
        options = part.options
        if options is None or (options.changes is None and not options.banned and options.mask is None):
            return _choose(mixed, part.random_key, self._vocab_size)
        logits = _logits(mixed, part.random_key, self._vocab_size).astype(np.float32)
        if options.changes is not None:
            token_ids, (bias, repetition, penalty) = options.changes
            assert len(set(token_ids.tolist())) == len(token_ids), "a token is changed twice"
            some = logits[token_ids] + bias
            logits[token_ids] = np.where(some > 0, some / repetition, some * repetition) - penalty
        logits[[token for token in options.banned if token < self._vocab_size]] = -np.inf
        if options.mask is not None:
            allowed = np.unpackbits(options.mask.view(np.uint8), bitorder="little", count=self._vocab_size)
            logits[allowed == 0] = -np.inf
        assert logits.max() > -np.inf, "nothing is left to be chosen"
        return int(logits.argmax())

    def _logprobs(self, part: SequenceStep, mixed: int, token: int) -> TokenLogprobs | None:
        sampling = part.sampling
        if sampling is None or sampling.num_logprobs < 0:
            return None
        values = _distribution(mixed, self._vocab_size)
        return TokenLogprobs(float(values[token]), most_likely(values, sampling.num_logprobs))


class Launched:
    """A step, computed or not."""

    def __init__(self, runner: FakeRunner, plan: StepPlan, identities: Sequence[Identity]) -> None:
        self.plan = plan
        self.identities = identities
        self.result: StepResult | None = None
        self.wipes: list[BlockId] = []  # blocks to empty after it
        self.transfers: list[Transfer] = []  # that start after it
        self._runner = runner

    def wait(self) -> StepResult:
        """Return the result; once."""
        return self._runner.finish(self)


def _check_moves(plan: StepPlan) -> None:
    """Check what a plan may copy: each slab and each block once each way."""
    for moves in (plan.stores, plan.loads):
        assert len({move.slab for move in moves}) == len(moves), "a slab is copied twice in one step"
        assert len({move.block for move in moves}) == len(moves), "a block is copied twice in one step"


def _owners(who: Identity, positions: np.ndarray) -> np.ndarray:
    return np.where(positions < who.num_head, who.head, who.own)


def _is_ahead(part: SequenceStep) -> bool:
    return any(token < 0 for token in part.token_ids)


def expected_tokens(
    prompt: list[int],
    count: int,
    *,
    random_key: int,
    vocab_size: int = 1000,
    sampling: SamplingParams = _PLAIN,
    stop_ids: Collection[int] = (),
    constraint: Constraint | None = None,
) -> list[int]:
    """Return the `count` tokens that a sequence gets when nothing goes wrong, whoever runs beside it."""
    output: list[int] = []
    for _ in range(count):
        mixed = _mix(np.array([*prompt, *output], dtype=np.int64))
        if is_shaped(sampling) or constraint is not None:
            mask = None if constraint is None else constraint.mask([*prompt, *output], len(prompt))
            logits = _logits(mixed, random_key, vocab_size)
            shaped = shape(logits, sampling, prompt, output, stop_ids=stop_ids, mask=mask)
            if shaped.max() == -np.inf:  # a grammar at its end is stronger than `min_tokens`
                shaped = shape(logits, sampling, prompt, output, mask=mask)
            output.append(int(shaped.argmax()))
        else:
            output.append(_choose(mixed, random_key, vocab_size))
    return output


def embedding(prompt: list[int]) -> tuple[float, ...]:
    """Return the embedding of a prompt: means of its tokens, and of its tokens by their places."""
    return tuple((_sums(np.array(prompt, dtype=np.int64), 0) / len(prompt)).tolist())


def prompt_scores(prompt: list[int], count: int, *, vocab_size: int = 1000) -> list[TokenLogprobs]:
    """Return the log-probabilities of a prompt's tokens from the second on, each beside those of the `count` best."""
    found = []
    for place in range(1, len(prompt)):
        values = distribution(prompt[:place], vocab_size=vocab_size)
        found.append(TokenLogprobs(float(values[prompt[place]]), most_likely(values, count)))
    return found


def distribution(tokens: list[int], *, vocab_size: int = 1000) -> np.ndarray:
    """Return the log-probability of every token id after these tokens; many are equal."""
    return _distribution(_mix(np.array(tokens, dtype=np.int64)), vocab_size)


def most_likely(logprobs: np.ndarray, count: int) -> tuple[tuple[int, float], ...]:
    """Return the `count` best token ids with their log-probabilities, best first, ties by token id."""
    best = np.argsort(-logprobs, kind="stable")[:count]
    return tuple(zip(best.tolist(), logprobs[best].tolist(), strict=True))


def _sums(tokens: np.ndarray, start: int) -> np.ndarray:
    places = np.arange(start + 1, start + 1 + len(tokens))
    return np.array([(tokens + 1).sum(), ((tokens + 1) * places).sum()], dtype=np.float64)


def _mix(tokens: np.ndarray) -> int:
    """Hash tokens with their places: any change of a token or of an order changes the result with near certainty."""
    places = np.arange(1, len(tokens) + 1, dtype=np.int64)
    return int(((tokens + 1) * (places * 2_654_435_761 % 1_000_003)).sum())


def _choose(mixed: int, random_key: int, vocab_size: int) -> int:
    return (mixed * 6_364_136_223_846_793_005 + random_key) % _PRIME % vocab_size


def _logits(mixed: int, random_key: int, vocab_size: int) -> np.ndarray:
    """Return what a changed choice is made from: the best is what is chosen without a change, by a little."""
    logits = _scores(mixed, vocab_size)
    logits[_choose(mixed, random_key, vocab_size)] = logits.max() + 0.25
    return logits


def _distribution(mixed: int, vocab_size: int) -> np.ndarray:
    """Return log-probabilities over the vocabulary."""
    scores = _scores(mixed, vocab_size)
    return scores - (scores.max() + np.log(np.exp(scores - scores.max()).sum()))


def _scores(mixed: int, vocab_size: int) -> np.ndarray:
    """Return logits from 0 to 16 in steps of 1/64, so that ties happen."""
    values = np.uint64(mixed % _PRIME) + np.arange(1, vocab_size + 1, dtype=np.uint64) * _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX
    values = values ^ (values >> np.uint64(27))
    return (values >> np.uint64(54)).astype(np.float64) / 64
