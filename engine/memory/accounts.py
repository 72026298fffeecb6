"""Whose blocks: one account per tenant and share group, with guarantee (soft), ceiling (hard), and what it holds.

Guarantees that come to more than the pool up to its low watermark (an operator has overcommitted it, or it has shrunk)
scale down pro rata, so that what is guaranteed can be kept, and a reserve is left from which borrowers finish.
"""

from collections.abc import Iterator
from typing import NamedTuple

from engine.errors import InvariantError
from engine.memory.lenders import UNLISTED, Figures, Lenders
from engine.request import TenantId

LOW_WATERMARK = 0.90  # of the pool; what is above is the reserve


class ShareGroupId(NamedTuple):
    """Owner of a share group's account. Not a string: a group may be called like a tenant."""

    group: str


AccountOwner = TenantId | ShareGroupId


class Account:
    """One owner's blocks on this worker, each counted once; every figure is in blocks."""

    __slots__ = (
        "_blocks",
        "_cached",
        "_seconds_above",
        "_soft",
        "_touched",
        "above_since",
        "asked_soft",
        "counted",
        "hard",
        "index",
        "listed",
        "number",
        "owner",
        "peak",
        "reserved",
    )

    def __init__(self, owner: AccountOwner, index: int, number: int, touched: "set[Account]") -> None:
        self.owner = owner
        self.index = index  # written beside each of its blocks
        self.number = number  # in the order of opening, never used again
        self._touched = touched  # where it enters itself when it has changed
        self._blocks = 0
        self._cached = 0
        self._soft = 0
        self.reserved = 0  # promised to its sequences, not yet taken
        self.peak = 0  # the most held since `take_peak`
        self.asked_soft = 0  # the guarantee by policy
        self.hard = 0  # never more than this; a lowered one takes effect at the next plan
        self.above_since: float | None = None  # when it came above its guarantee; None: it is not above it
        self._seconds_above = 0.0  # in all the times before
        self.counted, self.listed = Figures(), UNLISTED  # the lenders' (lenders.py)

    @property
    def blocks(self) -> int:
        """Blocks held now: in use by its sequences, and cached."""
        return self._blocks

    @blocks.setter
    def blocks(self, blocks: int) -> None:
        self._blocks = blocks
        self._touched.add(self)

    @property
    def cached(self) -> int:
        """Of them, those that no sequence uses."""
        return self._cached

    @cached.setter
    def cached(self, cached: int) -> None:
        self._cached = cached
        self._touched.add(self)

    @property
    def soft(self) -> int:
        """What is never taken for another tenant's need: the policy's guarantee, or what the pool leaves of it."""
        return self._soft

    @soft.setter
    def soft(self, soft: int) -> None:
        self._soft = soft
        self._touched.add(self)

    @property
    def used(self) -> int:
        """Blocks that sequences use: what is left when its own cache has given way."""
        return self._blocks - self._cached

    @property
    def borrowed(self) -> int:
        """Blocks that its sequences use above the guarantee: what preempting them can give back."""
        return max(0, self._blocks - self._cached - self._soft)

    @property
    def overdrawn(self) -> int:
        """Blocks that its sequences use or are promised above the guarantee: what preempting all can give back."""
        return max(0, self._blocks - self._cached + self.reserved - self._soft)

    @property
    def overage(self) -> int:
        """Blocks that are borrowed: held above the guarantee."""
        return max(0, self._blocks - self._soft)

    @property
    def takeable(self) -> int:
        """Cached blocks that may be taken for the need of others."""
        return min(self._cached, max(0, self._blocks - self._soft))

    def take_peak(self) -> int:
        """Return the highest use since the last call and start again from the current one."""
        peak, self.peak = self.peak, self.blocks
        return peak

    def seconds_above(self, now: float) -> float:
        """Return for how long it has held more than its guarantee, since it was opened."""
        return self._seconds_above + (0.0 if self.above_since is None else now - self.above_since)

    def come_below(self, now: float) -> None:
        """End the time above the guarantee."""
        self._seconds_above, self.above_since = self.seconds_above(now), None


class Accounts:
    """All accounts. An account exists while its owner has a policy or holds a block."""

    __slots__ = (
        "_accounts",
        "_by_index",
        "_is_scaled",
        "_lenders",
        "_num_opened",
        "_room",
        "_spare",
        "_total_asked",
        "_total_soft",
    )

    def __init__(self, capacity: int) -> None:
        """Start without accounts over a pool of `capacity` blocks."""
        self._room = int(capacity * LOW_WATERMARK)  # for guarantees
        self._total_asked = 0
        self._total_soft = 0
        self._is_scaled = False
        self._accounts: dict[AccountOwner, Account] = {}
        self._by_index: list[Account | None] = []
        self._spare: list[int] = []  # indices of closed accounts
        self._num_opened = 0
        self._lenders = Lenders()

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def get(self, owner: AccountOwner) -> Account | None:
        """Return the owner's account, or None."""
        return self._accounts.get(owner)

    def at(self, index: int) -> Account:
        """Return the account with this index."""
        account = self._by_index[index]
        assert account is not None, "an index is written beside a block, and an account with blocks stays open"
        return account

    def set_limits(self, owner: AccountOwner, *, soft: int, hard: int) -> Account:
        """Open or change an account; blocks above a lowered ceiling stay until the next plan enforces it.

        Call `fit_guarantees` after the last of a series of changes.
        """
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = self._open(owner)
        asked = min(soft, hard)
        self._total_asked += asked - account.asked_soft
        self._total_soft += asked - account.soft
        account.soft = account.asked_soft = asked
        account.hard = hard
        return account

    def fit_guarantees(self) -> None:
        """Scale all guarantees down pro rata if they do not fit together, and back up when they do."""
        exceeds = self._total_asked > self._room
        if not (exceeds or self._is_scaled):
            return
        for account in self:
            account.soft = account.asked_soft
            if exceeds:
                account.soft = account.asked_soft * self._room // self._total_asked
        self._total_soft = sum(account.soft for account in self)
        self._is_scaled = exceeds

    def settle(self, now: float) -> None:
        """Note who has come above the guarantee, and who is back within it.

        Call it after each series of changes, at the time of the changes: then the seconds above it are exact.
        """
        for account in self._lenders.take_touched():
            is_above = account.blocks > account.soft
            if is_above and account.above_since is None:
                account.above_since = now
            elif not is_above and account.above_since is not None:
                account.come_below(now)

    def close(self, owner: AccountOwner) -> None:
        """Drop an account; an owner that still holds blocks cannot be dropped."""
        account = self._accounts.pop(owner, None)
        if account is None:
            return
        if account.blocks or account.reserved:
            raise InvariantError(f"account of {owner} is closed with {account.blocks} blocks")
        self._total_asked -= account.asked_soft
        self._total_soft -= account.soft
        self._lenders.drop(account)
        self._by_index[account.index] = None
        self._spare.append(account.index)

    def largest_borrower(self, besides: Account) -> Account | None:
        """Return the account with the largest overage that has cached blocks to give, or None."""
        return self._lenders.largest(besides)

    def takeable(self, besides: Account | None = None) -> int:
        """Return the cached blocks of others that may be taken for this account's need, or for a stranger's."""
        return self._lenders.sums().takeable - (besides.takeable if besides is not None else 0)

    def unused_guarantees(self, besides: Account) -> int:
        """Return the blocks that other tenants may still claim within their soft limits."""
        return self._lenders.sums().unused - max(0, besides.soft - besides.blocks)

    def borrowed(self) -> int:
        """Return the blocks that sequences use above their guarantees, of all accounts."""
        return self._lenders.sums().borrowed

    def guarantees(self, besides: Account) -> int:
        """Return the sum of the others' soft limits, in blocks."""
        return self._total_soft - besides.soft

    def audit(self) -> None:
        """Check what is kept of all accounts together."""
        self._lenders.audit(self)

    def _open(self, owner: AccountOwner) -> Account:
        self._num_opened += 1
        if self._spare:
            account = Account(owner, self._spare.pop(), self._num_opened, self._lenders.touched)
            self._by_index[account.index] = account
        else:
            account = Account(owner, len(self._by_index), self._num_opened, self._lenders.touched)
            self._by_index.append(account)
        return account
