"""What a cached block looks like to an eviction policy, and what the prefix tree asks of one.

    EvictionPolicy   a pure key function: the lowest key goes first. One small file each.
    EvictionOrder    what the tree holds: a policy, and perhaps a shadow that judges it and falls back.

Only leaves are ever compared: a block with children in the tree is no candidate, whatever its key.
"""

from collections.abc import Sequence
from typing import NamedTuple, NewType, Protocol

BlockKey = NewType("BlockKey", bytes)  # 32 bytes of SHA-256 over namespace, model, KV format, parent key and tokens


class CachedNode(NamedTuple):
    """One block of the tree. Times are the scheduler's clock in seconds."""

    block: int
    last_use: float  # when a sequence last matched it or gave it back
    hits: int  # times that a request found it in the tree, and what `stored` remembered of earlier stays
    children: int  # blocks of the same namespace that continue it; 0 for a candidate
    users: int  # sequences that hold it now; 0 for a candidate
    depth: int  # blocks before it in its sequence: 0 for the first block of a prompt
    num_tokens: int  # prompt tokens up to its end: what recomputing it from nothing would cost


class EvictionPolicy(Protocol):
    """Orders cached blocks. Pure: the key depends on the node alone, not on the time of the question.

    That lets the tree keep candidates in a heap and compute a key only when a node becomes a candidate. What should
    fade with time is written as a bonus on `last_use` (a block with three hits is worth so many seconds of recency).
    """

    @property
    def name(self) -> str:
        """Name it in metrics and benchmarks."""
        ...

    def key(self, node: CachedNode) -> float:
        """Return the node's value; the lowest is evicted first."""
        ...


class EvictionOrder(Protocol):
    """What the tree asks and tells. Calls come from one thread, in the order of events."""

    @property
    def generation(self) -> int:
        """Count the changes of the ordering: the tree sorts its candidates anew when it differs."""
        ...

    def key(self, node: CachedNode) -> float:
        """Return the node's value under the policy in force; the lowest is evicted first."""
        ...

    def looked_up(self, keys: Sequence[BlockKey], num_found: int, now: float) -> None:
        """Note that a request asked for these blocks, in order, and found the first `num_found` of them."""
        ...

    def stored(self, key: BlockKey, now: float) -> int:
        """Note that a block joined the tree; return the hits that it starts with, remembered from an earlier stay."""
        ...

    def evicted(self, key: BlockKey, hits: int) -> None:
        """Note that a block left the tree, and how often it had been hit; a policy may remember that for a while."""
        ...
