"""Least recently used: the yardstick."""

import numpy as np

from engine.memory.eviction.base import CachedNode, View
from engine.memory.eviction.sightings import NO_SCORE, Bytes


class LeastRecentlyUsed:
    """A Predictor that foretells nothing: the block that nobody has used for longest goes first."""

    name = "lru"
    seconds = 0.0

    def key(self, node: CachedNode) -> float:
        """Return when the block was last used."""
        return node.last_use

    def judge(self, view: View) -> Bytes:
        """Return the same score for all."""
        return np.full(len(view.sight.hits), NO_SCORE, np.uint8)
