"""Least recently used: the yardstick, and what every other policy falls back to."""

from engine.memory.eviction.base import CachedNode


class LeastRecentlyUsed:
    """The block that nobody has used for longest goes first."""

    name = "lru"

    def key(self, node: CachedNode) -> float:
        """Return when the block was last used."""
        return node.last_use
