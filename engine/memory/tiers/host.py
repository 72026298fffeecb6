"""Blocks in host memory (L2), by what they hold: key → slab, with an account for each owner.

    claimed   a sequence that was preempted, or that fetches, waits for it: its tenant's ceiling has room for all such
              blocks, and no other need takes them.
    idle      nobody waits for it. It stays findable, for the next request with the same beginning, until its slab is
              needed for something that is worth more: the least valuable of the owner who is most above its share.

    pool evicts a block ─▶ store ─────────────────▶ claimed ⇄ idle ─▶ gone
    copied ahead of that (mover.py) ─▶ coming ────────┤          │
    read from the disk (disk.py) ────▶ coming ────────┘   load ──┘  copied back; the slab keeps it

START HERE, then: claims.py (who waits for which blocks), shares.py (whose accounts, and who gives way), moves.py (what
the next plan copies), slabs.py (which memory is free, and what must be overwritten). A slab that a plan copies to or
from is held until that plan is committed (`landed`): nobody but the device touches it before. Ids and counts only: the
memory is the runner's.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from engine.errors import InvariantError
from engine.memory.accounts import AccountOwner
from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.eviction.reuse import ReuseWeighted
from engine.memory.tiers.claims import Claims, Streamed
from engine.memory.tiers.hosted import Content, HostAccount, Hosted, Presence
from engine.memory.tiers.moves import Moves, NextMoves, Store
from engine.memory.tiers.shares import Shares
from engine.memory.tiers.slabs import SlabPool
from engine.request import BlockId, SequenceId, SlabId
from engine.step import SlabMove

_WATCHED = 4096  # blocks that have come, until somebody looks
_DEEPER = 1e-6  # seconds of recency that each block before it takes from a block: the end of a prompt goes first

Value = Callable[[AccountOwner, BlockKey, CachedNode], float]


class HostTier:
    """Owner of all slabs. No account ever has more than its ceiling; with no slabs at all it wants nothing."""

    def __init__(self, num_slabs: int, block_size: int = 16) -> None:
        self.num_slabs = num_slabs
        self.slabs = SlabPool(num_slabs)
        self.num_evicted = 0  # blocks that were here and whose slab was needed
        self.num_lost = 0  # blocks worth keeping that left the device and found no slab
        self.num_broken = 0  # claimed blocks that went nevertheless: their owner has a lower ceiling, or is gone
        self.num_from_disk = 0  # blocks that the disk had, and a request loaded: each counts once
        self.num_guessed = 0  # blocks that were read for a guess, and a request loaded
        self.now = 0.0  # of the last plan
        self.value: Value = lambda owner, key, node: _REUSE.key(node)  # of an owner's block; the lowest goes first
        self._block_size = block_size
        self._shares = Shares(num_slabs)
        self.claims = Claims(self._shares, self._claim_changed)
        self.next = NextMoves()
        self._blocks: dict[BlockKey, Hosted] = {}
        self._by_slab: dict[SlabId, Hosted] = {}
        self.restless: dict[HostAccount, None] = {}  # who has got a block, or lost one, since it was last looked at
        self._fresh: deque[BlockKey] | None = None  # for who watches

    @property
    def num_used(self) -> int:
        """Slabs that hold a block, or will."""
        return len(self._blocks)

    def used(self, owner: AccountOwner) -> int:
        """Return the slabs that an owner has."""
        account = self._shares.get(owner)
        return 0 if account is None else account.used

    def keeps(self, owner: AccountOwner) -> bool:
        """Say whether anything of an owner's may be here."""
        account = self._shares.get(owner)
        return account is not None and account.ceiling > 0

    def has_spare(self, owner: AccountOwner, share: float) -> bool:
        """Say whether there is a slab for an owner, and a share of all beside it, that nobody has to give up."""
        account = self._shares.get(owner)
        return account is not None and account.used < account.ceiling and self.slabs.num_free > share * self.num_slabs

    def accounts(self) -> Iterable[HostAccount]:
        """Return the accounts of all owners that may have something here."""
        return self._shares

    # ------------------------------------------------------------ limits

    def limit(self, owner: AccountOwner, num_slabs: int) -> None:
        """Set an owner's ceiling; what is above it is given up at once, idle blocks first."""
        account = self._shares.get(owner)
        if account is None:
            if num_slabs <= 0 or not self.num_slabs:
                return
            account = self._shares.open(owner)
        self._shares.set_ceiling(account, num_slabs)
        while account.used > num_slabs:
            self.drop((account.lowest(self.worth) or next(iter(account.blocks.values()))).key)
        self._shares.close_if_done(account)

    def forget(self, owner: AccountOwner) -> None:
        """Give up all that an owner has; its slabs are overwritten before anything else is done with them."""
        account = self._shares.get(owner)
        if account is None:
            return
        self._shares.set_ceiling(account, 0)
        for entry in list(account.blocks.values()):
            self.drop(entry.key, erase=True)
        self._shares.close_if_done(account)

    def ceiling(self, owner: AccountOwner) -> int:
        """Return the most slabs that an owner may have."""
        account = self._shares.get(owner)
        return 0 if account is None else min(account.ceiling, self.num_slabs)

    def take_dirty(self, limit: int) -> list[SlabId]:
        """Return up to `limit` slabs that must be overwritten before the next plan's stores."""
        return self.slabs.take_dirty(limit, self.next.stored)

    def soil(self) -> None:
        """Have all overwritten that may hold an earlier owner's bytes: what is free, and what waits for its block."""
        self.slabs.soil(slab for slab, one in self._by_slab.items() if one.presence is not Presence.READY)

    # ------------------------------------------------------------ for sequences

    def num_claimable(self, keys: Sequence[BlockKey], owner: AccountOwner, end: int) -> int:
        """Return how many of `keys[:end]` from the first on can be read in the next plan, and be claimed for that."""
        room, count = self.claims.room(owner), self.find(keys, 0, end)
        for index in range(count):
            room -= not self.claims.wants(keys[index])
            if room < 0:
                return index
        return count

    def num_missing(self, keys: Iterable[BlockKey]) -> int:
        """Return how many of these blocks would have to be stored."""
        return sum(key not in self._blocks for key in keys)

    def keep(
        self, sequence: SequenceId, key: BlockKey, block: BlockId, content: Content, *, owner: AccountOwner
    ) -> Hosted | None:
        """Claim a block of a running sequence that is to be read here from the next plan on, which stores it if needed.

        None, and nothing done: there is no room for it. The claim is `Streamed(sequence)`, opened if there is none.

        Args:
            sequence: whose block it is.
            key: of what it holds.
            block: where that is until the next plan.
            content: what else is known of it.
            owner: whose ceiling it counts against.
        """
        account, entry = self._shares.get(owner), self._blocks.get(key)
        if account is None or not (self.claims.wants(key) or self.claims.room(owner)):
            return None
        if entry is None:
            slab = None if self.next.is_loading(block) else self._find_slab(account, None, is_needed=True)
            if slab is None:
                return None
            entry = Hosted(key, slab, account, content, Presence.PLANNED)
            self._add(entry)
            self.next.store(slab, Store(block, owner, owner))
        elif entry.presence is Presence.COMING:
            return None
        self.claims.claim_one(Streamed(sequence), account, key)
        return entry

    # ------------------------------------------------------------ blocks

    def get(self, key: BlockKey) -> Hosted | None:
        """Return what is known of a block that is here or coming."""
        return self._blocks.get(key)

    def evicted(
        self, key: BlockKey, block: BlockId, content: Content | None, *, by: AccountOwner, of: AccountOwner
    ) -> None:
        """Note that a block leaves the device, and plan to store it if that is worth it and there is a slab for it.

        Args:
            key: of what it holds.
            block: where that is until the next plan.
            content: what else is known of it; None if its owner keeps nothing here.
            by: whose need it is.
            of: whose block it is.
        """
        if self.unload(block):  # not there yet: the slab has it, if it is not being given up
            return
        if content is None or key in self._blocks:
            return
        account, claimed = self._shares.get(of), self.claims.wants(key)
        assert account is not None, "known, so it keeps something here"
        if not claimed and self.next.is_storing_enough:
            self.num_lost += 1
            return
        slab = self._find_slab(account, None if claimed else self.value(of, key, content.node))
        if slab is None:
            self.num_lost += 1
            return
        self._add(Hosted(key, slab, account, content, Presence.PLANNED))
        self.next.store(slab, Store(block, by, of), is_urgent=not claimed)

    def find(self, keys: Sequence[BlockKey], start: int, end: int) -> int:
        """Return how many of `keys[start:end]` from the first on can be loaded in the next plan."""
        blocks = self._blocks
        for index in range(start, end):
            entry = blocks.get(keys[index])
            if entry is None or entry.presence is Presence.COMING:
                return index - start
        return max(0, end - start)

    def load(self, key: BlockKey, block: BlockId) -> bool:
        """Plan to load a block; False if it is not here any more."""
        entry = self._blocks.get(key)
        if entry is None or entry.presence is Presence.COMING:
            return False
        self.next.load(entry.slab, block)
        self.num_from_disk += entry.from_disk
        self.num_guessed += entry.guessed
        entry.from_disk = entry.guessed = False
        self.hold(entry)
        self.touch(entry)
        return True

    def unload(self, block: BlockId) -> bool:
        """Have the next plan not load a block, which is given up; False if it would not."""
        slab = self.next.unload(block)
        if slab is None:
            return False
        self.let_go(slab)
        return True

    def blocks(self) -> Iterator[tuple[BlockKey, SlabId]]:
        """Iterate over what is here, with the slab that holds it, but for what is still to be stored or read."""
        return ((key, entry.slab) for key, entry in self._blocks.items() if entry.presence is Presence.READY)

    def take(self) -> Moves:
        """Return what is to be copied in the next plan; `landed` follows when that one is committed."""
        moves = self.next.take()
        for move in moves.stores:
            self.slabs.hold(move.slab)
        return moves

    def landed(self, stores: Iterable[SlabMove], loads: Iterable[SlabMove]) -> None:
        """Note that the copies of a plan have been made."""
        for move in stores:
            entry = self._by_slab.get(move.slab)
            if entry is not None:
                self._be_ready(entry)
            self.let_go(move.slab)
        for move in loads:
            self.let_go(move.slab)

    # ------------------------------------------------------------ copies beside the steps

    def expect(self, key: BlockKey, owner: AccountOwner, content: Content | None) -> SlabId | None:
        """Give a block that is not here a slab to be copied to; None: there is none for it. `arrived` must follow.

        What is known (`content`) says what it is worth; without it, it is worth as much as what was used just now.
        """
        account = self._shares.get(owner)
        if account is None or key in self._blocks:
            return None
        is_wanted = content is None or self.claims.wants(key)
        slab = self._find_slab(account, None if is_wanted or content is None else self.value(owner, key, content.node))
        if slab is None:
            return None
        self.slabs.hold(slab)
        entry = Hosted(key, slab, account, content, Presence.COMING)
        entry.last_use = entry.last_use or self.now
        self._add(entry)
        return slab

    def arrived(self, slab: SlabId, *, ok: bool) -> None:
        """Note that the copy to a slab is over; where it failed, the block is not here, and the slab is overwritten."""
        entry = self._by_slab.get(slab)
        if entry is not None and ok:
            self._be_ready(entry)
        elif entry is not None:
            self.drop(entry.key, erase=True)
        self.let_go(slab)

    def hold(self, entry: Hosted) -> SlabId:
        """Keep a block's slab as it is until `let_go`, for a copy from it."""
        self.slabs.hold(entry.slab)
        self._weigh(entry)
        return entry.slab

    def let_go(self, slab: SlabId) -> None:
        """End a hold."""
        if self.slabs.let_go(slab):
            entry = self._by_slab.get(slab)
            if entry is not None:
                self._weigh(entry)
            else:
                self.next.unstore(slab)  # it was for a load alone, which nobody plans any more

    def touch(self, entry: Hosted) -> None:
        """Note that a request found a block."""
        entry.last_use = max(entry.last_use, self.now)
        entry.hits += 1
        self._weigh(entry)

    def demote(self, entry: Hosted) -> None:
        """Make a block the first to go."""
        entry.last_use, entry.hits = 0.0, 0
        self._weigh(entry)

    def drop(self, key: BlockKey, *, erase: bool = False) -> None:
        """Let a block go; its slab is free when nobody holds it."""
        entry = self._blocks.pop(key)
        self.num_broken += self.claims.wants(key)
        slab, account = entry.slab, entry.account
        del self._by_slab[slab], account.blocks[slab]
        account.num_idle -= entry.idle
        is_unwritten = slab in self.next.stored  # what is there may be another's, to be overwritten
        if not self.slabs.is_held(slab):
            self.next.unstore(slab)  # else a planned load still needs it
        self.slabs.give_back(slab, erase=erase or is_unwritten)

    def watch(self) -> deque[BlockKey]:
        """Return what will have the keys of blocks that have come here, the latest ones: for the caller to empty."""
        self._fresh = deque(maxlen=_WATCHED)
        return self._fresh

    def worth(self, entry: Hosted) -> float:
        """Return what a block is worth, in seconds of the scheduler's clock."""
        return self.value(entry.account.owner, entry.key, entry.node(self._block_size)) - _DEEPER * entry.depth

    # ------------------------------------------------------------ who goes

    def _find_slab(self, account: HostAccount, value: float | None, *, is_needed: bool = False) -> SlabId | None:
        """Return a slab for one more block of an account, or None.

        `value`: what the block is worth, which what goes for it in its own account must not be; None: any may go.
        `is_needed`: idle blocks of others give way within their share, too: the account has room for its claims.
        """
        if account.used >= account.ceiling and not self._evict(account, value):
            return None
        slab = self.slabs.take()
        while slab is None:
            giver = self._giver(account, is_needed=is_needed)
            if giver is None or not self._evict(giver, value if giver is account else None):
                return None
            slab = self.slabs.take()
        return slab

    def _giver(self, account: HostAccount, *, is_needed: bool) -> HostAccount | None:
        """Return whose block goes for one more of an account: who is most above its share, or it itself."""
        shares, largest = self._shares, self._shares.largest()
        if largest is not None and shares.overage(largest) > max(0.0, shares.overage(account)):
            return largest
        if account.num_idle:
            return account
        return largest if is_needed else None

    def _evict(self, account: HostAccount, value: float | None) -> bool:
        """Give up the account's least valuable idle block, if it is worth less than `value`."""
        entry = account.lowest(self.worth)
        if entry is None or (value is not None and entry.value >= value):
            return False
        self.num_evicted += 1
        self.drop(entry.key)
        return True

    # ------------------------------------------------------------ parts

    def _claim_changed(self, key: BlockKey) -> None:
        """Weigh a block that is claimed now, or is not any more; then it is as good as used just now."""
        entry = self._blocks.get(key)
        if entry is not None:
            if not self.claims.wants(key):
                entry.last_use = max(entry.last_use, self.now)
            self._weigh(entry)

    def _add(self, entry: Hosted) -> None:
        self._blocks[entry.key] = self._by_slab[entry.slab] = entry
        entry.account.blocks[entry.slab] = entry
        self._shares.grown(entry.account)

    def _be_ready(self, entry: Hosted) -> None:
        entry.presence = Presence.READY
        self.slabs.written(entry.slab)
        if self._fresh is not None:
            self._fresh.append(entry.key)
            self.restless[entry.account] = None

    def _weigh(self, entry: Hosted) -> None:
        """Have a block stand among its account's idle ones, or not, with its value as it is now."""
        account = entry.account
        is_free = entry.presence is Presence.READY and not self.slabs.is_held(entry.slab)
        idle = is_free and not self.claims.wants(entry.key)
        account.num_idle += idle - entry.idle
        entry.idle = idle
        self._shares.grown(account)
        if idle:
            account.rank(entry, self.worth(entry))

    # ------------------------------------------------------------ proof

    def audit(self) -> None:
        """Recount slabs, claims and accounts. Raises InvariantError."""
        self.slabs.audit(list(self._by_slab))
        if {id(one) for one in self._by_slab.values()} != {id(one) for one in self._blocks.values()}:
            raise InvariantError("a block in host memory has no slab, or another's")
        planned = {slab for slab, one in self._by_slab.items() if one.presence is Presence.PLANNED}
        self.next.audit(planned, self.slabs.is_held)
        self.claims.audit(self.slabs.is_held)
        self._shares.audit()
        if sum(account.used for account in self._shares) != len(self._blocks):
            raise InvariantError("a block in host memory has no account")


_REUSE = ReuseWeighted()
