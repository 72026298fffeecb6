"""Whose blocks: one account per tenant and share group, with guarantee (soft), ceiling (hard), and what it holds.

Guarantees that do not all fit the pool (an operator has overcommitted it, or it has shrunk) scale down pro rata, so
that what is guaranteed can be kept.
"""

from collections.abc import Iterator
from typing import NamedTuple

from engine.errors import InvariantError
from engine.request import TenantId


class ShareGroupId(NamedTuple):
    """Owner of a share group's account. Not a string: a group may be called like a tenant."""

    group: str


AccountOwner = TenantId | ShareGroupId


class Account:
    """One owner's blocks on this worker, each counted once; every figure is in blocks."""

    __slots__ = (
        "_seconds_above",
        "above_since",
        "asked_soft",
        "blocks",
        "cached",
        "hard",
        "index",
        "owner",
        "peak",
        "reserved",
        "soft",
    )

    def __init__(self, owner: AccountOwner, index: int) -> None:
        self.owner = owner
        self.index = index  # written beside each of its blocks
        self.blocks = 0  # held now: in use by its sequences, and cached
        self.cached = 0  # of them, those that no sequence uses
        self.reserved = 0  # promised to its sequences, not yet taken
        self.peak = 0  # the most held since `take_peak`
        self.asked_soft = 0  # the guarantee by policy
        self.soft = 0  # what is never taken for another tenant's need: the policy's, or what the pool leaves of it
        self.hard = 0  # never more than this; a lowered one takes effect at the next plan
        self.above_since: float | None = None  # when it came above its guarantee; None: it is not above it
        self._seconds_above = 0.0  # in all the times before

    @property
    def used(self) -> int:
        """Blocks that sequences use: what is left when its own cache has given way."""
        return self.blocks - self.cached

    @property
    def borrowed(self) -> int:
        """Blocks that its sequences use above the guarantee: what preempting them can give back."""
        return max(0, self.blocks - self.cached - self.soft)

    @property
    def overdrawn(self) -> int:
        """Blocks that its sequences use or are promised above the guarantee: what preempting all can give back."""
        return max(0, self.blocks - self.cached + self.reserved - self.soft)

    @property
    def overage(self) -> int:
        """Blocks that are borrowed: held above the guarantee."""
        return max(0, self.blocks - self.soft)

    @property
    def takeable(self) -> int:
        """Cached blocks that may be taken for the need of others."""
        return min(self.cached, max(0, self.blocks - self.soft))

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
        "_above",
        "_accounts",
        "_by_index",
        "_capacity",
        "_is_scaled",
        "_spare",
        "_total_asked",
        "_total_soft",
        "risen",
    )

    def __init__(self, capacity: int) -> None:
        """Start without accounts over a pool of `capacity` blocks."""
        self._capacity = capacity
        self._total_asked = 0
        self._total_soft = 0
        self._is_scaled = False
        self._accounts: dict[AccountOwner, Account] = {}
        self._by_index: list[Account | None] = []
        self._spare: list[int] = []  # indices of closed accounts
        self._above: dict[int, Account] = {}  # by index: those above their guarantee, at the last `settle`
        self.risen: list[Account] = []  # that may have come above it since

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
        self.risen.append(account)
        return account

    def fit_guarantees(self) -> None:
        """Scale all guarantees down pro rata if they do not fit the pool together, and back up when they do."""
        exceeds = self._total_asked > self._capacity
        if not (exceeds or self._is_scaled):
            return
        for account in self:
            account.soft = account.asked_soft
            if exceeds:
                account.soft = account.asked_soft * self._capacity // self._total_asked
        self._total_soft = sum(account.soft for account in self)
        self._is_scaled = exceeds
        self.risen.extend(self)

    def settle(self, now: float) -> None:
        """Note who has come above the guarantee, and who is back within it.

        Call it after each series of changes, at the time of the changes: then the seconds above it are exact.
        """
        for account in self.risen:
            if account.above_since is None and account.blocks > account.soft:
                account.above_since = now
                self._above[account.index] = account
        self.risen.clear()
        for account in [one for one in self._above.values() if one.blocks <= one.soft]:
            account.come_below(now)
            del self._above[account.index]

    def close(self, owner: AccountOwner) -> None:
        """Drop an account; an owner that still holds blocks cannot be dropped."""
        account = self._accounts.pop(owner, None)
        if account is None:
            return
        if account.blocks or account.reserved:
            raise InvariantError(f"account of {owner} is closed with {account.blocks} blocks")
        self._total_asked -= account.asked_soft
        self._total_soft -= account.soft
        self._above.pop(account.index, None)
        self._by_index[account.index] = None
        self._spare.append(account.index)

    def largest_borrower(self, besides: Account) -> Account | None:
        """Return the account with the largest overage that has cached blocks to give, or None."""
        lenders = (account for account in self if account is not besides and account.takeable)
        return max(lenders, key=lambda account: account.overage, default=None)

    def takeable(self, besides: Account) -> int:
        """Return the cached blocks of others that may be taken for this account's need."""
        return sum(account.takeable for account in self if account is not besides and account.cached)

    def unused_guarantees(self, besides: Account) -> int:
        """Return the blocks that other tenants may still claim within their soft limits."""
        return sum(max(0, account.soft - account.blocks) for account in self if account is not besides)

    def guarantees(self, besides: Account) -> int:
        """Return the sum of the others' soft limits, in blocks."""
        return self._total_soft - besides.soft

    def _open(self, owner: AccountOwner) -> Account:
        if self._spare:
            account = Account(owner, self._spare.pop())
            self._by_index[account.index] = account
        else:
            account = Account(owner, len(self._by_index))
            self._by_index.append(account)
        return account
