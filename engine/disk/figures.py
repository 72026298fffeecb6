"""What a store counts since it was opened, and what goes one way between any two tiers."""

from bisect import bisect_left
from collections import Counter

from engine.disk.events import LATENCY_MS, Direction


class Tally:
    """What goes one way."""

    def __init__(self) -> None:
        self._slabs, self._bytes, self._seconds = 0, 0, 0.0
        self._latencies = [0] * (len(LATENCY_MS) + 1)

    def add(self, num_bytes: int, seconds: float, num_slabs: int = 1) -> None:
        """Count one copy: of a slab, or of several at once."""
        self._slabs += num_slabs
        self._bytes += num_bytes
        self._seconds += seconds
        self._latencies[bisect_left(LATENCY_MS, seconds * 1e3)] += 1

    def read(self) -> Direction:
        """Return the figures."""
        return Direction(self._slabs, self._bytes, self._seconds, tuple(self._latencies))


class Figures:
    """All of them; they outlive the lives of a store."""

    def __init__(self) -> None:
        self.reads, self.writes = Tally(), Tally()
        self.num_hits = self.num_evicted = self.num_refused = 0
        self.errors: Counter[str] = Counter()
