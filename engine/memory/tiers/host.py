"""Blocks in host memory, by what they hold: key → slab, with an account for each tenant.

    claimed   a sequence that was preempted waits for it: its tenant's ceiling has room for all such blocks, and no
              other need takes them. A block that leaves the device is stored only if it is claimed (`wants`).
    idle      its sequence is back, or gone. It stays findable, for the next preemption or the next request with the
              same beginning, until its slab is needed: the least recently used goes first.

    pool evicts a wanted block ─▶ store ─▶ claimed ─▶ idle ─▶ gone
                                              │         │
                                              └── load ─┘     copied back; the slab keeps it

Stores and loads pile up until `take` puts them into a plan, where all stores come before all loads: what is stored in a
plan can be loaded in the same one. A slab that is given up while a load from it is planned is not stored to in that
plan. Ids and counts only: the memory is the runner's.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.errors import InvariantError
from engine.memory.accounts import AccountOwner
from engine.memory.eviction.base import BlockKey
from engine.request import BlockId, SequenceId, SlabId
from engine.step import SlabMove

Recency = OrderedDict[BlockKey, None]  # least recently used first


class HostAccount:
    """One owner's blocks in host memory; every figure is in slabs."""

    __slots__ = ("ceiling", "claimed", "idle", "num_claims", "owner")

    def __init__(self, owner: AccountOwner) -> None:
        self.owner = owner
        self.ceiling = 0
        self.idle: Recency = OrderedDict()
        self.claimed: Recency = OrderedDict()  # of its claims, those that are here
        self.num_claims = 0  # blocks that sequences wait for, here or still on the device

    @property
    def used(self) -> int:
        """Slabs that it has."""
        return len(self.idle) + len(self.claimed)


@dataclass(slots=True)
class _Stored:
    slab: SlabId
    account: HostAccount


class _Claim(NamedTuple):
    account: HostAccount
    keys: Sequence[BlockKey]


class _Store(NamedTuple):
    block: BlockId
    by: AccountOwner  # whose need it was
    of: AccountOwner


class Moves(NamedTuple):
    """What the next plan copies, and for whom blocks were moved out: (by whose need, of whose memory) → blocks."""

    stores: tuple[SlabMove, ...] = ()
    loads: tuple[SlabMove, ...] = ()
    needs: Counter[tuple[AccountOwner, AccountOwner]] | None = None


class HostTier:
    """Owner of all slabs. No account ever has more than its ceiling; with no slabs at all it wants nothing."""

    def __init__(self, num_slabs: int) -> None:
        self.num_slabs = num_slabs
        self.num_evicted = 0  # blocks that were here and whose slab was needed
        self._num_begun = 0  # slabs that were ever used: the first ones
        self._free: list[SlabId] = []  # of them
        self._dirty: deque[SlabId] = deque()  # of owners that are gone: to be overwritten
        self._accounts: dict[AccountOwner, HostAccount] = {}
        self._blocks: dict[BlockKey, _Stored] = {}
        self._idle: Recency = OrderedDict()  # of all accounts
        self._claims: dict[SequenceId, _Claim] = {}
        self._claimed: Counter[BlockKey] = Counter()  # by how many sequences
        self._stores: dict[SlabId, _Store] = {}
        self._loads: dict[BlockId, SlabId] = {}
        self._loading: set[SlabId] = set()  # their slabs
        self._leaving: dict[SlabId, bool] = {}  # given up with a load planned; whether they are to be overwritten

    @property
    def num_used(self) -> int:
        """Slabs that hold a block."""
        return len(self._blocks)

    def used(self, owner: AccountOwner) -> int:
        """Return the slabs that an owner has."""
        account = self._accounts.get(owner)
        return 0 if account is None else account.used

    # ------------------------------------------------------------ limits

    def limit(self, owner: AccountOwner, num_slabs: int) -> None:
        """Set an owner's ceiling; what is above it is given up at once, idle blocks first."""
        account = self._accounts.get(owner)
        if account is None:
            if num_slabs <= 0 or not self.num_slabs:
                return
            account = self._accounts[owner] = HostAccount(owner)
        account.ceiling = num_slabs
        while account.used > num_slabs:
            self._drop(next(iter(account.idle or account.claimed)))
        self._close_if_done(account)

    def forget(self, owner: AccountOwner) -> None:
        """Give up all that an owner has; its slabs are overwritten before anything else is done with them."""
        account = self._accounts.get(owner)
        if account is None:
            return
        account.ceiling = 0
        for key in [*account.idle, *account.claimed]:
            self._drop(key, erase=True)
        self._close_if_done(account)

    def take_dirty(self, limit: int) -> list[SlabId]:
        """Return up to `limit` slabs that must be overwritten before the next plan's stores; they are free then."""
        slabs = [self._dirty.popleft() for _ in range(min(limit, len(self._dirty)))]
        self._free += reversed(slabs)
        return slabs

    # ------------------------------------------------------------ claims

    def room(self, owner: AccountOwner) -> int:
        """Return how many more blocks an owner's sequences may claim."""
        account = self._accounts.get(owner)
        if account is None:
            return 0
        return max(0, min(account.ceiling - account.num_claims, self.num_slabs - len(self._claimed)))

    def num_missing(self, keys: Iterable[BlockKey]) -> int:
        """Return how many of these blocks would have to be stored."""
        return sum(key not in self._blocks for key in keys)

    def num_unclaimed(self, keys: Iterable[BlockKey]) -> int:
        """Return how many of these blocks nobody claims yet."""
        return sum(key not in self._claimed for key in keys)

    def claim(self, sequence: SequenceId, owner: AccountOwner, keys: Sequence[BlockKey]) -> None:
        """Keep an owner's blocks for a sequence until `release`, wherever they are now; see `room`."""
        account = self._accounts.get(owner)
        if account is None or sequence in self._claims:
            raise InvariantError(f"sequence {sequence} of {owner} claims blocks twice, or without an account")
        self._claims[sequence] = _Claim(account, keys)
        for key in keys:
            self._claimed[key] += 1
            if self._claimed[key] == 1:
                account.num_claims += 1
                if key in self._blocks:
                    del account.idle[key], self._idle[key]
                    account.claimed[key] = None

    def release(self, sequence: SequenceId) -> None:
        """End a sequence's claim, if it has one. What is here stays, idle, as the most recently used."""
        claim = self._claims.pop(sequence, None)
        if claim is None:
            return
        account = claim.account
        for key in reversed(claim.keys):  # the first of a prompt are used last: without them the others are no use
            self._claimed[key] -= 1
            if self._claimed[key]:
                continue
            del self._claimed[key]
            account.num_claims -= 1
            if key in self._blocks:
                del account.claimed[key]
                account.idle[key] = self._idle[key] = None
        self._close_if_done(account)

    # ------------------------------------------------------------ blocks

    def wants(self, key: BlockKey) -> bool:
        """Decide at its eviction from the device whether a block is to be stored. Today: if a sequence waits for it."""
        return key in self._claimed

    def evicted(self, key: BlockKey, block: BlockId, *, by: AccountOwner, of: AccountOwner) -> None:
        """Note that a block leaves the device, and plan to store it if that is wanted and there is a slab for it.

        Args:
            key: of what it holds.
            block: where that is until the next plan.
            by: whose need it is.
            of: whose block it is.
        """
        if not (self.wants(key) or block in self._loads):  # which is nearly always so
            return
        slab = self._loads.pop(block, None)
        if slab is not None:  # not there yet: the slab has it, if it is not being given up
            self._loading.discard(slab)
            self._settle(slab)
            return
        account = self._accounts.get(of)
        if account is None or key in self._blocks:
            return
        slab = self._find_slab(account)
        if slab is None:
            return
        self._blocks[key] = _Stored(slab, account)
        account.claimed[key] = None
        self._stores[slab] = _Store(block, by, of)

    def find(self, keys: Sequence[BlockKey], start: int, end: int) -> int:
        """Return how many of `keys[start:end]` from the first on can be loaded in the next plan."""
        for index in range(start, end):
            if keys[index] not in self._blocks:
                return index - start
        return max(0, end - start)

    def load(self, key: BlockKey, block: BlockId) -> bool:
        """Plan to load a block; False if it is not here any more."""
        stored = self._blocks.get(key)
        if stored is None:
            return False
        self._loads[block] = stored.slab
        self._loading.add(stored.slab)
        if key in stored.account.idle:
            stored.account.idle.move_to_end(key)
            self._idle.move_to_end(key)
        return True

    def is_loading(self, block: BlockId) -> bool:
        """Say whether what a block holds will be there only with the next plan."""
        return block in self._loads

    def blocks(self) -> Iterator[tuple[BlockKey, SlabId]]:
        """Iterate over what is here, with the slab that holds it, but for what the plan to come will store."""
        return ((key, stored.slab) for key, stored in self._blocks.items() if stored.slab not in self._stores)

    def take(self) -> Moves:
        """Return what is to be copied, and forget it."""
        if not (self._stores or self._loads):
            return Moves()
        stores, loads = self._stores, self._loads
        self._stores, self._loads, self._loading = {}, {}, set()
        for slab in list(self._leaving):
            self._settle(slab)
        return Moves(
            tuple(SlabMove(store.block, slab) for slab, store in stores.items()),
            tuple(SlabMove(block, slab) for block, slab in loads.items()),
            Counter((store.by, store.of) for store in stores.values()),
        )

    # ------------------------------------------------------------ parts

    def _find_slab(self, account: HostAccount) -> SlabId | None:
        """Return a slab for one more block of an account, or None."""
        while account.used >= account.ceiling:
            if not account.idle:
                return None
            self._evict(next(iter(account.idle)))
        if not self._free and self._num_begun < self.num_slabs:
            self._free.append(SlabId(self._num_begun))  # neighbours are copied in one piece
            self._num_begun += 1
        while not self._free and not self._dirty:
            if not self._idle:
                return None
            self._evict(next(iter(self._idle)))
        return self._free.pop() if self._free else self._dirty.popleft()  # a store overwrites all of it

    def _evict(self, key: BlockKey) -> None:
        self.num_evicted += 1
        self._drop(key)

    def _drop(self, key: BlockKey, *, erase: bool = False) -> None:
        """Let a block go; its slab is free when no planned load needs it."""
        stored = self._blocks.pop(key)
        if key in self._claimed:
            del stored.account.claimed[key]
        else:
            del stored.account.idle[key], self._idle[key]
        self._leaving[stored.slab] = erase
        self._settle(stored.slab)

    def _settle(self, slab: SlabId) -> None:
        """Make a slab that was given up free, or dirty, once no load from it is planned."""
        if slab not in self._leaving or slab in self._loading:
            return
        is_unwritten = self._stores.pop(slab, None) is not None  # what is there may be another's, to be overwritten
        if self._leaving.pop(slab) or is_unwritten:
            self._dirty.append(slab)
        else:
            self._free.append(slab)

    def _close_if_done(self, account: HostAccount) -> None:
        if not (account.ceiling or account.used or account.num_claims):
            self._accounts.pop(account.owner, None)

    # ------------------------------------------------------------ proof

    def audit(self) -> None:
        """Recount slabs, claims and accounts. Raises InvariantError."""
        held = [stored.slab for stored in self._blocks.values()]
        slabs = sorted([*held, *self._free, *self._dirty, *self._leaving])
        if slabs != list(range(self._num_begun)) or self._num_begun > self.num_slabs:
            raise InvariantError("a slab is lost, or has two owners")
        if set(self._loads.values()) != self._loading or len(self._loads) != len(self._loading):
            raise InvariantError("a slab is loaded twice in one plan, or should be and is not")
        if (self._loading | set(self._stores)) - {*held, *self._leaving}:
            raise InvariantError("a plan copies from or to a slab that is not there for it")
        if set(self._leaving) - self._loading:
            raise InvariantError("a slab is kept for a load that is not planned")
        claims = Counter(key for claim in self._claims.values() for key in claim.keys)
        if claims != self._claimed:
            raise InvariantError("a block is claimed by more sequences, or by fewer, than are waiting for it")
        if set(self._idle) != {key for account in self._accounts.values() for key in account.idle}:
            raise InvariantError("the order of idle blocks is not that of the accounts")
        for account in self._accounts.values():
            self._audit_account(account)
        if sum(account.used for account in self._accounts.values()) != len(self._blocks):
            raise InvariantError("a block in host memory has no account")

    def _audit_account(self, account: HostAccount) -> None:
        own = {key for key, stored in self._blocks.items() if stored.account is account}
        claimed = {key for claim in self._claims.values() if claim.account is account for key in claim.keys}
        if set(account.claimed) != own & claimed or set(account.idle) != own - claimed:
            raise InvariantError(f"{account.owner}: idle or claimed blocks in host memory are not those that are there")
        if account.num_claims != len(claimed):
            raise InvariantError(f"{account.owner} counts {account.num_claims} claimed blocks, has {len(claimed)}")
        if account.used > account.ceiling:
            raise InvariantError(f"{account.owner} has {account.used} slabs, more than {account.ceiling}")
