"""When a request ends if nothing else happens to it: deadlines, and how long it may be held or parked."""

import heapq

from engine.scheduler.sequence import SequenceState, State


class Timers:
    """A heap of times with one valid entry per sequence; others are dropped when they come up."""

    __slots__ = ("_heap", "_num_valid")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SequenceState]] = []
        self._num_valid = 0

    def set(self, sequence: SequenceState, when: float) -> None:
        """Let the sequence's only timer go off at `when`; 0 means never."""
        if when == sequence.timer:
            return
        self._num_valid += (when > 0) - (sequence.timer > 0)
        sequence.timer = when
        if when > 0:
            heapq.heappush(self._heap, (when, sequence.number, sequence))
        if len(self._heap) > 64 + 2 * self._num_valid:  # ended requests with far deadlines must not pile up
            self._heap = [entry for entry in self._heap if _is_valid(entry)]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """Return when the next timer goes off, or None."""
        while self._heap and not _is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> SequenceState | None:
        """Return a sequence whose time has come, or None; its timer is off then."""
        when = self.next()
        if when is None or when > now:
            return None
        sequence = heapq.heappop(self._heap)[2]
        self._num_valid -= 1
        sequence.timer = 0.0
        return sequence


def _is_valid(entry: tuple[float, int, SequenceState]) -> bool:
    when, _, sequence = entry
    return sequence.timer == when and sequence.state is not State.ENDED
