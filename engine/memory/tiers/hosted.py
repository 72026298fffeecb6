"""One block in host memory, and what one owner has there."""

from enum import Enum
from typing import NamedTuple

from engine.memory.accounts import AccountOwner
from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.ranking import Ranking
from engine.request import BlockId, SlabId


class Content(NamedTuple):
    """What is known of a block beside its key: enough to put it back into the prefix tree without a request."""

    before: BlockKey  # key of what it continues; its namespace's root for a first block
    packed_tokens: bytes  # see `engine.memory.tokens`
    node: CachedNode  # as an eviction policy saw it last


class Presence(Enum):
    """Whether a slab holds its block yet."""

    READY = "ready"
    PLANNED = "planned"  # a plan stores it: plans may load it, nobody else may look
    COMING = "coming"  # a copy beside the steps, or from the disk: nobody may look


class Hosted:
    """A block in host memory. Only `HostTier` changes it; others read."""

    __slots__ = (
        "account",
        "before",
        "depth",
        "from_disk",
        "guessed",
        "hits",
        "idle",
        "key",
        "last_use",
        "packed_tokens",
        "presence",
        "saved",
        "slab",
        "value",
    )

    def __init__(
        self, key: BlockKey, slab: SlabId, account: "HostAccount", content: Content | None, presence: Presence
    ) -> None:
        self.key = key
        self.slab = slab
        self.account = account
        self.presence = presence
        self.from_disk = content is None  # and no request has used it since
        self.guessed = False  # read from the disk for a request that has not come yet
        self.saved = self.from_disk  # on the disk, or on its way there
        self.before: BlockKey | None = None
        self.packed_tokens: bytes | None = None  # not known of what comes from the disk, until a request loads it
        self.last_use, self.hits, self.depth = 0.0, 0, 0
        if content is not None:
            self.learn(content)
        self.value = 0.0  # by which it stands in its account's ranking, if it is idle
        self.idle = False  # it is ready, nobody claims it and nobody holds its slab: it may go

    def learn(self, content: Content) -> None:
        """Take in what is known of the block."""
        self.before, self.packed_tokens = content.before, content.packed_tokens
        self.last_use = max(self.last_use, content.node.last_use)
        self.hits, self.depth = max(self.hits, content.node.hits), content.node.depth

    def node(self, block_size: int) -> CachedNode:
        """Return what an eviction policy sees of it; the slab's number stands for the block."""
        end = (self.depth + 1) * block_size
        return CachedNode(BlockId(self.slab), self.last_use, self.hits, 0, 0, self.depth, end)


class HostAccount:
    """One owner's blocks in host memory; every figure is in slabs."""

    __slots__ = ("ceiling", "keys", "listed", "num_claims", "num_idle", "owner", "ranking")

    def __init__(self, owner: AccountOwner) -> None:
        self.owner = owner
        self.ceiling = 0
        self.keys: dict[BlockKey, None] = {}  # of its blocks here
        self.num_claims = 0  # blocks that sequences wait for, here or still on the device
        self.num_idle = 0  # of its blocks here, those that may go
        self.listed = float("-inf")  # as `Shares` knows it
        self.ranking = Ranking()  # of them, and stale entries: see `HostTier.lowest`

    @property
    def used(self) -> int:
        """Slabs that it has."""
        return len(self.keys)
