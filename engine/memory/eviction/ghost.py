"""What a cache under some policy would hold: keys only, no blocks.

The keys given to it may be a sample. A prefix has been used at least as lately and as often as what continues it, so
under policies that value recency and hits a block is present only if its parents are, and each key can be judged alone.
"""

import heapq

from engine.memory.eviction.base import BlockKey, CachedNode, EvictionPolicy
from engine.memory.eviction.history import KeyHistory

_new = tuple.__new__
SAMPLE_ALL = 256  # a sample of s holds the keys with a SAMPLE_BYTE below s
SAMPLE_BYTE = 8  # the eight before it index the history


class GhostCache:
    """Replays look-ups against a policy. About 250 bytes a key."""

    __slots__ = ("_entries", "_heap", "_history", "_order", "_policy")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._entries: dict[BlockKey, tuple[float, int, int]] = {}  # value, order of use, hits
        self._heap: list[tuple[float, int, BlockKey]] = []
        self._history = KeyHistory()
        self._order = 0  # counts uses: of keys with one value, the one used first goes first

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_queued(self) -> int:
        """Entries of the queue, outdated ones included."""
        return len(self._heap)

    def look_up(self, key: BlockKey, depth: int, now: float) -> bool:
        """Return whether the key is here; it is afterwards, at least until `shrink`."""
        entry = self._entries.get(key)
        hits = self._history.recall(key) if entry is None else entry[2] + 1
        self._use(key, depth, hits, now)
        return entry is not None

    def store(self, key: BlockKey, now: float) -> None:
        """Add a key that nobody asked for: a block of an answer."""
        if key not in self._entries:
            self._use(key, 0, self._history.recall(key), now)

    def shrink(self, capacity: int) -> None:
        """Drop the keys of least value until at most `capacity` are left."""
        entries, heap = self._entries, self._heap
        self._history.fit(capacity)
        while len(entries) > capacity:
            _, order, key = heapq.heappop(heap)
            entry = entries.get(key)
            if entry is not None and entry[1] == order:
                del entries[key]
                self._history.note(key, entry[2])
        if len(heap) > 64 + 2 * len(entries):
            self._heap = [(value, order, key) for key, (value, order, _) in entries.items()]
            heapq.heapify(self._heap)

    def keep(self, sample: int) -> None:
        """Drop every key that a smaller sample leaves out."""
        self._entries = {key: entry for key, entry in self._entries.items() if key[SAMPLE_BYTE] < sample}

    def _use(self, key: BlockKey, depth: int, hits: int, now: float) -> None:
        # In the order of CachedNode's fields: a call of CachedNode takes twice as long.
        value = self._policy.key(_new(CachedNode, (-1, now, hits, 0, 0, depth, 0)))
        self._order += 1
        self._entries[key] = (value, self._order, hits)
        heapq.heappush(self._heap, (value, self._order, key))
