"""Swap or recompute: what a sequence that is preempted should do to have its blocks again, by predicted seconds.

    swap       bytes to store ÷ measured rate out + bytes to load ÷ measured rate back
    recompute  what its tokens add to the steps that compute them again (step_time.py)

Both are what the device is kept from other work for. A sequence for which swapping is cheaper claims its blocks
(memory/tiers/host.py): those of them that leave the device are stored, if they were not copied out before, and stay in
host memory until it is back. The rest of its tokens, fewer than a block's, are computed again in any case.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.memory.eviction.base import BlockKey
from engine.memory.lookup import Match
from engine.memory.manager import KVMemory
from engine.memory.supply import Taking
from engine.memory.table import BlockTable
from engine.memory.tiers.moves import Moves
from engine.memory.tiers.rate import CopyRate
from engine.scheduler.interference import Again, Interference
from engine.scheduler.sequence import SequenceState
from engine.scheduler.step_time import StepTimeModel, StepWork, chunk_pairs
from engine.step import StepPlan, StepResult

_IDLE = StepWork(0, 0)
_TOKEN_SECONDS = 0.001  # to compute one, until any step was measured: the first request after a start may be a return


class SwapCost:
    """Predicts seconds of either way from what was measured. One machine, one model."""

    def __init__(self, block_bytes: int, step_time: StepTimeModel) -> None:
        self.out, self.back = CopyRate(), CopyRate()
        self._block_bytes = block_bytes
        self._step_time = step_time

    def store_seconds(self, num_blocks: int) -> float:
        """Return how long blocks take to host memory."""
        return self.out.predict(num_blocks * self._block_bytes)

    def load_seconds(self, num_blocks: int) -> float:
        """Return how long blocks take back."""
        return self.back.predict(num_blocks * self._block_bytes)

    def compute_seconds(self, start: int, end: int) -> float:
        """Return what computing the tokens from `start` to `end` adds to the steps that do it."""
        if not self._step_time.num_observed:
            return (end - start) * _TOKEN_SECONDS
        work = StepWork(0, 0, end - start, chunk_pairs(start, end - start))
        return self._step_time.predict(work) - self._step_time.predict(_IDLE)

    def step_seconds(self, work: StepWork) -> float:
        """Return how long a step takes."""
        return self._step_time.predict(work)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Take in how long a step's copies took."""
        self.out.observe(len(plan.stores) * self._block_bytes, result.store_seconds)
        self.back.observe(len(plan.loads) * self._block_bytes, result.load_seconds)


@dataclass(slots=True)
class SwapCounts:
    """What was decided and done since the core started."""

    num_swapped: int = 0  # preempted sequences for which swapping was cheaper, and there was room
    num_recomputed: int = 0  # for which computing again was cheaper
    num_without_room: int = 0  # for which swapping was cheaper, and host memory or the tenant's ceiling had no room
    saved_seconds: float = 0.0  # predicted, by swapping
    stored_blocks: int = 0
    loaded_blocks: int = 0
    predicted_seconds: float = 0.0  # of these copies, each as it was predicted before it was made
    observed_seconds: float = 0.0
    again_tokens: int = 0  # computed again
    again_predicted_seconds: float = 0.0  # what these added to their steps, by the model of step times
    again_observed_seconds: float = 0.0  # what the steps took beyond what they would have without, by the same model


class Swapping:
    """The choice, and what came of it."""

    def __init__(self, memory: KVMemory, step_time: StepTimeModel, interference: Interference) -> None:
        self.cost = SwapCost(memory.shape.block_bytes, step_time)
        self.counts = SwapCounts()
        self._memory = memory
        self._interference = interference

    def preempted(self, sequence: SequenceState) -> None:
        """Choose how a running sequence, about to lose its blocks, is to have them again."""
        host, table = self._memory.host, sequence.table
        assert table is not None, "it runs"
        keys = self._own_keys(sequence, table)
        if not keys or not host.num_slabs:
            return
        size, first = self._memory.shape.block_size, table.num_head
        swap = self.cost.store_seconds(host.num_missing(keys)) + self.cost.load_seconds(len(keys))
        recompute = self.cost.compute_seconds(first * size, (first + len(keys)) * size)
        if recompute <= swap:
            self.counts.num_recomputed += 1
        elif host.claims.num_new(keys) > host.claims.room(sequence.tenant.name):
            self.counts.num_without_room += 1
        else:
            self.counts.num_swapped += 1
            self.counts.saved_seconds += recompute - swap
            host.claims.claim(sequence.id, sequence.tenant.name, keys)

    def gone(self, sequence: SequenceState) -> None:
        """Note that a sequence has its blocks again, or needs them no more."""
        self._memory.host.claims.release(sequence.id)

    def worthwhile(self, match: Match) -> Match:
        """Return a match without its blocks in host memory where computing them again is cheaper than loading them."""
        if not match.num_hosted:
            return match
        size = self._memory.shape.block_size
        start = len(match.blocks) * size
        compute = self.cost.compute_seconds(start, start + match.num_hosted * size)
        if self.cost.load_seconds(match.num_hosted) < compute:
            return match
        return self._memory.lookup.without_hosted(match)

    def planned(self, moves: Moves) -> None:
        """Count what a plan is going to copy."""
        self.counts.stored_blocks += len(moves.stores)
        self.counts.loaded_blocks += len(moves.loads)
        for (by, of), count in (moves.needs or {}).items():
            self._interference.swapped(Taking(by, of), count * self._memory.shape.block_bytes)

    def done(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from what a step's copies took."""
        if not (plan.stores or plan.loads):
            return
        predicted = self.cost.store_seconds(len(plan.stores)) + self.cost.load_seconds(len(plan.loads))
        self.counts.predicted_seconds += predicted
        self.counts.observed_seconds += result.store_seconds + result.load_seconds
        self.cost.observe(plan, result)

    def computed_again(self, again: Again, step: StepWork, seconds: float) -> None:
        """Count what computing lost tokens again has added to a step that took so long."""
        tokens, pairs = max(0, step.prefill_tokens - again.tokens), max(0, step.prefill_pairs - again.pairs)
        without = self.cost.step_seconds(step._replace(prefill_tokens=tokens, prefill_pairs=pairs))
        self.counts.again_tokens += again.tokens
        self.counts.again_predicted_seconds += self.cost.step_seconds(step) - without
        self.counts.again_observed_seconds += max(0.0, seconds - without)

    def _own_keys(self, sequence: SequenceState, table: BlockTable) -> Sequence[BlockKey]:
        """Return the keys of the sealed blocks that count against its tenant; of a search, those of the prompt."""
        if table.chain is None:
            return ()
        size, end = self._memory.shape.block_size, table.num_sealed
        if sequence.reusable < len(sequence.tokens) - 1:  # what has to be computed again in any case
            end = min(end, sequence.reusable // size)
        if sequence.beams is not None:
            end = min(end, sequence.num_prompt // size)
        return table.chain.keys[table.num_head : end]
