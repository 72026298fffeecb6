"""What a cached block looks like to an eviction order, and what the prefix tree asks of one.

    Predictor       says how likely the blocks of a prompt are to be asked for again: a score, worth seconds of recency
    EvictionOrder   what the tree holds: predictors, and a shadow that judges them and falls back to plain LRU
    ReuseValue      the same for blocks of other tiers, by key

    value of a block = its last use + seconds · score       the lowest goes first

A value depends on the last use alone, not on the time of the question: candidates stay sorted. It is what an optimal
policy comes to if the chance of reuse falls by e in so many seconds, whatever it is to begin with.

Only leaves are ever compared: a block with children in the tree is no candidate, whatever its value.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.memory.eviction.features import Moment
from engine.memory.eviction.sightings import BlockKey, Bytes, Sight

__all__ = ["BlockKey", "CachedNode", "EvictionOrder", "Predictor", "ReuseValue", "View"]


class CachedNode(NamedTuple):
    """One block of the tree. Times are the scheduler's clock in seconds."""

    block: int
    last_use: float  # when a sequence last matched it or gave it back
    hits: int  # times that a request found it in the tree, and what `stored` remembered of earlier stays
    children: int  # blocks of the same namespace that continue it; 0 for a candidate
    users: int  # sequences that hold it now; 0 for a candidate
    depth: int  # blocks before it in its sequence: 0 for the first block of a prompt
    num_tokens: int  # prompt tokens up to its end: what recomputing it from nothing would cost


class View(NamedTuple):
    """A prompt as a predictor sees it when it comes."""

    sight: Sight
    moment: Moment


class Predictor(Protocol):
    """Foretells reuse. Scores are bytes: `NO_SCORE` is as usual, `SCORE_STEPS` more is e times as likely."""

    @property
    def name(self) -> str:
        """Name it in metrics and benchmarks."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds of recency that a block gains by being e times as likely to be asked for again."""
        ...

    def judge(self, view: View) -> Bytes:
        """Return the score of each block of a prompt that has just come."""
        ...


class EvictionOrder(Protocol):
    """What the tree asks and tells. Calls come from one thread, in the order of events."""

    @property
    def generation(self) -> int:
        """Count the changes of the ordering: the tree sorts its candidates anew when it differs."""
        ...

    def key(self, key: BlockKey, node: CachedNode) -> float:
        """Return the block's value, in seconds of the scheduler's clock; the lowest is evicted first.

        It may change when its key is looked up again, which nobody tells who has sorted by it.
        """
        ...

    def looked_up(self, keys: Sequence[BlockKey], num_found: int, now: float) -> None:
        """Note that a request asked for these blocks, in order, and found the first `num_found` of them."""
        ...

    def stored(self, key: BlockKey, now: float, before: BlockKey | None = None) -> int:
        """Note that a block joined the tree; return the hits that it starts with, remembered from an earlier stay.

        `before` is the key of what it continues, if that has one.
        """
        ...

    def evicted(self, key: BlockKey, hits: int) -> None:
        """Note that a block left the tree, and how often it had been hit."""
        ...


class ReuseValue(Protocol):
    """What blocks are worth to tiers that keep no tree. An account's EvictionOrder is one."""

    def values(self, keys: Sequence[BlockKey], now: float) -> list[float]:
        """Return for each block the seconds that it is worth more than one that is as likely as usual to come back.

        Add them to the time of its last use, on whatever clock: the lowest sum goes first. Nothing is known of a key
        whose value is 0.
        """
        ...
