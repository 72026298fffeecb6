"""Blocks in the order of a value that each has: packed sorted runs, 12 bytes an entry and no object for any.

    [ run ][ run ] … [ run ]      the lowest values at the very end, where taking one costs least

A run is two arrays, of values turned round and of blocks. A new value is mostly the highest (it counts from the time of
the last use) and goes to the front of the first run. `heapq` would need 150 bytes an entry, and to pop one in a million
it looks all over memory.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from engine.request import BlockId

_RUN = 512  # entries of a full run: to move half of them takes less time than to find the place


class Ranking:
    """A multiset of (value, block): lowest value first; of equal values, the one that was added first."""

    __slots__ = ("_blocks", "_firsts", "_num", "_values")

    def __init__(self, entries: Iterable[tuple[float, BlockId]] = ()) -> None:
        self._num = 0
        self._firsts: list[float] = []  # of each run; turned-round values rise within runs and from run to run
        self._values: list[array[float]] = []
        self._blocks: list[array[int]] = []
        for value, block in sorted(entries):
            self.add(value, block)

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[BlockId]:
        return (BlockId(block) for run in reversed(self._blocks) for block in reversed(run))

    def add(self, value: float, block: BlockId) -> None:
        """Add an entry, behind all of the same value."""
        value = -value
        number = max(0, bisect_left(self._firsts, value) - 1)
        if not self._firsts or (len(self._values[number]) == _RUN and value <= self._firsts[number]):
            self._open_run(number, array("d"), array("i"))  # the front of a full first run: leave that one full
        values = self._values[number]
        place = bisect_left(values, value)
        values.insert(place, value)
        self._blocks[number].insert(place, block)
        self._firsts[number] = values[0]
        self._num += 1
        if len(values) > _RUN:
            self._split(number)

    def pop(self) -> tuple[float, BlockId]:
        """Take the first entry out. There must be one."""
        values = self._values[-1]
        value, block = -values.pop(), self._blocks[-1].pop()
        if not values:
            del self._firsts[-1], self._values[-1], self._blocks[-1]
        self._num -= 1
        return value, BlockId(block)

    def _split(self, number: int) -> None:
        """Make two runs of one."""
        values, blocks = self._values[number], self._blocks[number]
        middle = len(values) // 2
        self._open_run(number + 1, values[middle:], blocks[middle:])
        del values[middle:], blocks[middle:]

    def _open_run(self, number: int, values: "array[float]", blocks: "array[int]") -> None:
        self._firsts.insert(number, values[0] if values else 0.0)
        self._values.insert(number, values)
        self._blocks.insert(number, blocks)
