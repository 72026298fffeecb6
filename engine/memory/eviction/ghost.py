"""What a cache under some policy would hold: keys and their values, no blocks.

The keys given to it may be a sample. A prefix is worth at least as much as what continues it, so that a block is
present only if its parents are, and each key can be judged alone.
"""

import heapq

from engine.memory.eviction.base import BlockKey

SAMPLE_ALL = 256  # a sample of s holds the keys with a SAMPLE_BYTE below s
SAMPLE_BYTE = 8  # the eight before it are a block's name


class GhostCache:
    """Replays look-ups. About 250 bytes a key."""

    __slots__ = ("_entries", "_heap", "_order")

    def __init__(self) -> None:
        self._entries: dict[BlockKey, tuple[float, int]] = {}  # value, order of use
        self._heap: list[tuple[float, int, BlockKey]] = []
        self._order = 0  # counts uses: of keys with one value, the one used first goes first

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_queued(self) -> int:
        """Entries of the queue, outdated ones included."""
        return len(self._heap)

    def look_up(self, key: BlockKey, value: float) -> bool:
        """Return whether the key is here; it is afterwards, with this value, at least until `shrink`."""
        is_here = key in self._entries
        self._order = order = self._order + 1
        self._entries[key] = (value, order)
        heapq.heappush(self._heap, (value, order, key))
        return is_here

    def store(self, key: BlockKey, value: float) -> None:
        """Add a key that nobody asked for: a block of an answer."""
        if key not in self._entries:
            self.look_up(key, value)

    def shrink(self, capacity: int) -> None:
        """Drop the keys of least value until at most `capacity` are left."""
        entries, heap = self._entries, self._heap
        while len(entries) > capacity:
            _, order, key = heapq.heappop(heap)
            entry = entries.get(key)
            if entry is not None and entry[1] == order:
                del entries[key]
        if len(heap) > 64 + 2 * len(entries):
            self._heap = [(value, order, key) for key, (value, order) in entries.items()]
            heapq.heapify(self._heap)

    def keep(self, sample: int) -> None:
        """Drop every key that a smaller sample leaves out."""
        self._entries = {key: entry for key, entry in self._entries.items() if key[SAMPLE_BYTE] < sample}
