"""How short the pool's memory is, as one number: what operators watch, and what the order of service can go by.

Four parts, each from 0 to 1:

    use       blocks that nobody can have now, by the pool: 0 up to the low watermark, 1 from the high one on.
              Free blocks can be had, unless they are promised; so can caches above their account's guarantee.
    borrowed  blocks that sequences use above their accounts' guarantees, as a share of the pool
    wait      the longest wait of a request that memory alone keeps from starting, against `WAIT_SECONDS` of its class
    swap      the share of the time in which blocks are copied between tiers: bytes a second ÷ the measured copy rate

    score = 1 - Π (1 - weight · part)

The parts are like independent reasons, each enough for some pressure (Pearl's noisy or): the score rises with each of
them and never falls; no part can hide another, and a second reason adds less than the first. A request that waits for
memory weighs most. A full pool alone is 0.6, which says that the next request will have to wait; a pool that is all
borrowed is 0.3, since what is borrowed can be taken back. All at once come to 0.97.

Parts are smoothed with a time constant of half a second, so that one step does not change what the next one does first;
the score is worked out of smoothed parts.
"""

import math
from typing import NamedTuple

from engine.memory.accounts import LOW_WATERMARK
from engine.memory.manager import KVMemory
from engine.scheduler.sequence import SequenceState, State

HIGH_WATERMARK = 0.95  # of the pool
WAIT_SECONDS = (0.5, 2.0, 10.0)  # of an interactive, a standard and a batch request: as long as it should wait at most
SMOOTHING_SECONDS = 0.5
REFRESH_SECONDS = 0.05  # a look at every account is not due in every step


class Parts(NamedTuple):
    """What makes pressure, each from 0 to 1."""

    use: float = 0.0
    borrowed: float = 0.0
    wait: float = 0.0
    swap: float = 0.0


WEIGHTS = Parts(use=0.6, borrowed=0.3, wait=0.8, swap=0.5)


def combine(parts: Parts) -> float:
    """Return the score of these parts."""
    return 1.0 - math.prod(1.0 - weight * part for weight, part in zip(WEIGHTS, parts, strict=True))


class PressureGauge:
    """The score as it is now. Reading `score` costs nothing; `refresh` in each plan works it out when it is due."""

    def __init__(self, memory: KVMemory) -> None:
        self.score = 0.0
        self.parts = Parts()  # smoothed, what the score is of
        self._memory = memory
        self._blocked: dict[SequenceState, float] = {}  # waiting ones that memory has held up, and since when
        self._copy_seconds = 0.0  # since the last refresh
        self._at = -math.inf

    def blocked(self, sequence: SequenceState, now: float) -> None:
        """Note that there are no blocks for a waiting sequence that nothing else keeps from starting."""
        self._blocked.setdefault(sequence, now)

    def copied(self, seconds: float) -> None:
        """Note time that was spent on copying blocks between tiers."""
        self._copy_seconds += seconds

    def refresh(self, now: float) -> None:
        """Work the score out, if it is due."""
        elapsed = now - self._at
        if elapsed < REFRESH_SECONDS:
            return
        kept = math.exp(-elapsed / SMOOTHING_SECONDS)
        fresh = self._measure(now, elapsed)
        self.parts = Parts(*(new + (old - new) * kept for old, new in zip(self.parts, fresh, strict=True)))
        self.score = combine(self.parts)
        self._at, self._copy_seconds = now, 0.0

    def use(self) -> float:
        """Return the share of the pool that nobody can have now."""
        supply = self._memory.supply
        return 1.0 - (supply.pool.num_free - supply.reserved + supply.accounts.takeable()) / supply.pool.num_blocks

    def _measure(self, now: float, elapsed: float) -> Parts:
        memory = self._memory
        self._blocked = {one: since for one, since in self._blocked.items() if one.state is State.WAITING}
        waits = ((now - since) / WAIT_SECONDS[one.rank] for one, since in self._blocked.items())
        return Parts(
            use=_clamp((self.use() - LOW_WATERMARK) / (HIGH_WATERMARK - LOW_WATERMARK)),
            borrowed=_clamp(memory.accounts.borrowed() / memory.pool.num_blocks),
            wait=_clamp(max(waits, default=0.0)),
            swap=_clamp(self._copy_seconds / elapsed),
        )


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
