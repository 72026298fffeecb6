"""Least recent use, weighted by hits: a block that came back before is likely to come back again.

    worth = last_use + BONUS_SECONDS · min(hits, MOST_HITS)

Why time: turns of a chat come 45 to 140 seconds apart (quartiles of the trace below), which is longer than a small
cache under plain LRU keeps anything. There LRU is full of prompts that are too young to have their next turn, and most
of them never have one: of blocks seen once a quarter comes back, seen twice 43 %, four times or more 65 %. A hit is
therefore worth about one gap between turns. Hits of earlier stays count too (sightings.py): a small cache has mostly
forgotten a block before its second use. A prefix has at least the hits of what continues it, so that parents stay
longer than children.

Provenance of the constants: the first half of the Mooncake conversation trace (6,015 requests; Apache-2.0). The optimum
is flat: from 100 to 300 seconds the hit rate at 1k and 3k blocks changes by 0.4 points at most. The shortest of these
costs least where plain LRU does well already, at 10k blocks and more.

The hazard table (hazard.py) starts from here and learns the rest. This alone is for replays in a hurry.
"""

import numpy as np

from engine.memory.eviction.base import CachedNode, View
from engine.memory.eviction.sightings import NO_SCORE, SCORE_STEPS, Bytes

BONUS_SECONDS = 100.0
MOST_HITS = 6


class ReuseWeighted:
    """A Predictor: each hit of a block counts as so many seconds of recency."""

    name = "reuse"

    def __init__(self, bonus_seconds: float = BONUS_SECONDS, most_hits: int = MOST_HITS) -> None:
        self.bonus_seconds = bonus_seconds
        self.most_hits = most_hits
        self.seconds = SCORE_STEPS * bonus_seconds / 6  # of one logarithm: a hit is six steps of a score

    def key(self, node: CachedNode) -> float:
        """Return last use plus the bonus of its hits, in seconds of the scheduler's clock."""
        return node.last_use + self.bonus_seconds * min(node.hits, self.most_hits)

    def judge(self, view: View) -> Bytes:
        """Return the same as scores."""
        return np.minimum(view.sight.hits, np.uint8(self.most_hits)) * np.uint8(6) + np.uint8(NO_SCORE)
