"""One block in host memory, and what one owner has there."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from engine.errors import InvariantError
from engine.memory.accounts import AccountOwner
from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.ranking import Ranking
from engine.request import BlockId, SlabId

_SLACK = 64  # stale entries that a ranking may carry beyond as many as it has good ones


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

    __slots__ = ("_ranking", "blocks", "ceiling", "listed", "num_claims", "num_idle", "owner")

    def __init__(self, owner: AccountOwner) -> None:
        self.owner = owner
        self.ceiling = 0
        self.blocks: dict[SlabId, Hosted] = {}  # those that are here, or coming
        self.num_claims = 0  # blocks that sequences wait for, here or still on the device
        self.num_idle = 0  # of its blocks here, those that may go
        self.listed = float("-inf")  # as `Shares` knows it
        self._ranking = Ranking()  # of them, by slab; an entry counts while its block may go and has that value still

    @property
    def used(self) -> int:
        """Slabs that it has."""
        return len(self.blocks)

    def rank(self, entry: Hosted, value: float) -> None:
        """Give an idle block its place among those that may go."""
        entry.value = value
        if len(self._ranking) > 2 * self.used + _SLACK:
            idle = [one for one in self.blocks.values() if one.idle and one is not entry]
            self._ranking = Ranking((one.value, BlockId(one.slab)) for one in idle)
        self._ranking.add(value, BlockId(entry.slab))

    def lowest(self, worth: Callable[[Hosted], float]) -> Hosted | None:
        """Return the least valuable idle block, or None. `worth`: what one is worth now."""
        while self._ranking:
            value, slab = self._ranking.pop()
            entry = self.blocks.get(SlabId(slab))
            if entry is None or not entry.idle or entry.value != value:
                continue
            entry.value = worth(entry)
            self._ranking.add(entry.value, BlockId(slab))
            if entry.value == value:
                return entry
        return None

    def tail(self, count: int) -> list[Hosted]:
        """Return up to `count` idle blocks, about in the order in which they will go."""
        found: dict[SlabId, Hosted] = {}
        for slab in map(SlabId, self._ranking):
            entry = self.blocks.get(slab)
            if entry is not None and entry.idle:
                found[slab] = entry
                if len(found) >= count:
                    break
        return list(found.values())

    def audit(self, claimed: set[BlockKey], is_held: Callable[[SlabId], bool]) -> None:
        """Recount: `claimed` blocks of its own, and whose slab is held. Raises InvariantError."""
        ranked = {SlabId(slab) for slab in self._ranking}
        for slab, entry in self.blocks.items():
            free = entry.presence is Presence.READY and not is_held(slab)
            if entry.account is not self or entry.slab != slab or entry.idle != (free and entry.key not in claimed):
                raise InvariantError(f"{self.owner}: a block in host memory is idle, or not, and counts otherwise")
            if entry.idle and slab not in ranked:
                raise InvariantError(f"{self.owner}: an idle block in host memory can never go")
        if self.num_idle != sum(entry.idle for entry in self.blocks.values()):
            raise InvariantError(f"{self.owner} counts {self.num_idle} idle blocks in host memory")
        if self.num_claims != len(claimed):
            raise InvariantError(f"{self.owner} counts {self.num_claims} claimed blocks, has {len(claimed)}")
        if self.used > self.ceiling:
            raise InvariantError(f"{self.owner} has {self.used} slabs, more than {self.ceiling}")
