"""Eviction orders for tests."""

from collections.abc import Sequence

from engine.memory.eviction.base import BlockKey, CachedNode, EvictionPolicy
from engine.memory.eviction.history import KeyHistory


class Unguarded:
    """Follows its policy through thick and thin; remembers evicted hits as the guarded one does."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.generation = 0
        self._policy = policy
        self._history = KeyHistory()
        self._num_blocks = 0

    def key(self, node: CachedNode) -> float:
        """Return the policy's key."""
        return self._policy.key(node)

    def looked_up(self, keys: Sequence[BlockKey], num_found: int, now: float) -> None:
        """Take no notice."""

    def stored(self, key: BlockKey, now: float) -> int:
        """Return remembered hits."""
        self._num_blocks += 1
        self._history.fit(self._num_blocks)
        return self._history.recall(key)

    def evicted(self, key: BlockKey, hits: int) -> None:
        """Remember hits."""
        self._num_blocks -= 1
        self._history.note(key, hits)


class Newest:
    """Evicts what was used last: hardly any policy is worse."""

    name = "newest"

    def key(self, node: CachedNode) -> float:
        """Return the time of use, turned round."""
        return -node.last_use
