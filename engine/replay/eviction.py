"""Eviction orders that count what each account gives up."""

from collections.abc import Sequence

from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.eviction.guard import GuardedOrder
from engine.memory.eviction.reuse import ReuseWeighted
from engine.replay.history import KeyHistory


class CountingOrder(GuardedOrder):
    """The worker's own order."""

    def __init__(self) -> None:
        super().__init__()
        self.num_evicted = 0

    def evicted(self, key: BlockKey, hits: int) -> None:
        """Note that a block was given up."""
        self.num_evicted += 1
        super().evicted(key, hits)


class UnjudgedOrder:
    """Recency weighted by hits, without what learns and what judges, which are a fifth of a replay: for long traces."""

    generation = 0  # never another policy

    def __init__(self) -> None:
        self.num_evicted = 0
        self._policy = ReuseWeighted()
        self._history = KeyHistory()
        self._num_blocks = 0

    def key(self, key: BlockKey, node: CachedNode) -> float:
        """Return the node's value."""
        return self._policy.key(node)

    def looked_up(self, keys: Sequence[BlockKey], num_found: int, now: float) -> None:
        """Learn nothing."""

    def stored(self, key: BlockKey, now: float, before: BlockKey | None = None) -> int:
        """Count a block in; return its hits of earlier stays."""
        self._num_blocks += 1
        return self._history.recall(key)

    def evicted(self, key: BlockKey, hits: int) -> None:
        """Note that a block was given up, and remember its hits."""
        self.num_evicted += 1
        self._history.fit(self._num_blocks)
        self._num_blocks -= 1
        self._history.note(key, hits)
