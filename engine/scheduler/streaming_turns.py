"""In which steps streamed sequences take part, so that others' tokens come in time.

What a sequence has in host memory is read anew in each of its steps, for as long as everybody in the step waits. So a
step may be longer than its target (targets.py) by one sequence's reading, but not step after step: each plan earns what
its target leaves beside the other decodes, and a turn costs what it reads.

    credit ← credit + max(0, target − predicted seconds of the other decodes)
    a turn   whose seconds the credit covers; who has waited longest first; after MOST_PLANS without one in any case

A sequence that takes k times the target therefore has a turn in each k-th step or so. Where no other decodes run there
is nobody to be late for: then everybody is in every step. What reading a block costs is what steps with it take longer
than their other work should (step_time.py), over the last of them; nothing, until there was one.
"""

import math
from collections.abc import Collection, Iterable, Sequence

from engine.scheduler.sequence import SequenceState
from engine.scheduler.step_time import StepTimeModel, StepWork
from engine.scheduler.targets import StepTarget

_LEAST_SECONDS = 1e-9
_FORGET = 0.9  # of one step
MOST_PLANS = 64  # that a streamed sequence sits out, one after the other


class StreamingTurns:
    """Says who sits a plan out. Remembers the credit, and how fast host memory is read."""

    __slots__ = ("_blocks", "_credit", "_model", "_seconds", "_target")

    def __init__(self, model: StepTimeModel, target: StepTarget) -> None:
        self._blocks, self._seconds = 1.0, 0.0  # that the last steps have read, and for how long
        self._model = model
        self._target = target
        self._credit = 0.0  # seconds

    def resting(
        self, streamed: Sequence[SequenceState], running: Sequence[SequenceState], number: int, now: float
    ) -> Collection[SequenceState]:
        """Return those of the streamed sequences that are not in plan `number`; the others have their turn."""
        readers = [one for one in streamed if one.table is not None and one.table.hosted]
        decodes = [one for one in running if not one.streams and one.remaining <= 1]
        room = self._room(decodes, now) if readers and decodes else math.inf
        if room == math.inf:
            self._credit = 0.0
            for one in readers:
                one.turn = number
            return ()
        costs = {one: self.seconds((one,)) for one in readers}
        self._credit = min(self._credit, max(costs.values())) + max(0.0, room)
        resting = dict.fromkeys(readers)
        for one in sorted(readers, key=lambda one: one.turn):
            if costs[one] > self._credit and number - one.turn < MOST_PLANS:
                break
            self._credit = max(0.0, self._credit - costs[one])
            one.turn = number
            del resting[one]
        return resting

    def _room(self, decodes: Sequence[SequenceState], now: float) -> float:
        """Return the seconds that the target of a step with these decodes leaves beside them."""
        context = sum(one.computed for one in decodes)
        return self._target.seconds(decodes, now) - self._model.predict(StepWork(len(decodes), context))

    def seconds(self, sequences: Iterable[SequenceState]) -> float:
        """Return how long a step with these sequences reads from host memory."""
        return self._predict(sum(one.table.num_hosted for one in sequences if one.table is not None))

    def observe(self, work: StepWork, num_hosted: int, seconds: float) -> float:
        """Take in how long a step with so many hosted blocks took; return what its other work took of that."""
        if not self._model.num_observed:
            return seconds
        self._blocks = self._blocks * _FORGET + num_hosted
        self._seconds = self._seconds * _FORGET + max(0.0, seconds - self._model.predict(work))
        return max(_LEAST_SECONDS, seconds - self._predict(num_hosted))

    def _predict(self, num_blocks: int) -> float:
        return num_blocks * self._seconds / self._blocks
