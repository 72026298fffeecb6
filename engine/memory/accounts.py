"""Whose blocks: one account per tenant, its guarantee (soft), its ceiling (hard), and what it holds.

Guarantees that do not all fit the pool (an operator has overcommitted it, or it has shrunk) scale down pro rata, so
that what is guaranteed can be kept.
"""

from collections.abc import Iterator

from engine.errors import InvariantError
from engine.request import TenantId


class Account:
    """One tenant's blocks on this worker; every figure is in blocks."""

    __slots__ = ("asked_soft", "blocks", "hard", "peak", "reserved", "soft", "tenant")

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.blocks = 0  # held now
        self.reserved = 0  # promised to its sequences, not yet taken
        self.peak = 0  # the most held since `take_peak`
        self.asked_soft = 0  # the guarantee by policy
        self.soft = 0  # what is never taken for another tenant's need: the policy's, or what the pool leaves of it
        self.hard = 0  # never more than this; a lowered one takes effect at the next plan

    @property
    def overage(self) -> int:
        """Blocks that are borrowed: held above the guarantee."""
        return max(0, self.blocks - self.soft)

    def take_peak(self) -> int:
        """Return the highest use since the last call and start again from the current one."""
        peak, self.peak = self.peak, self.blocks
        return peak


class Accounts:
    """All accounts. An account exists while its tenant has a policy or holds a block."""

    __slots__ = ("_accounts", "_capacity", "_is_scaled", "_total_asked", "_total_soft")

    def __init__(self, capacity: int) -> None:
        """Start without accounts over a pool of `capacity` blocks."""
        self._capacity = capacity
        self._total_asked = 0
        self._total_soft = 0
        self._is_scaled = False
        self._accounts: dict[TenantId, Account] = {}

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def get(self, tenant: TenantId) -> Account | None:
        """Return the tenant's account, or None."""
        return self._accounts.get(tenant)

    def set_limits(self, tenant: TenantId, *, soft: int, hard: int) -> Account:
        """Open or change an account; blocks above a lowered ceiling stay until the scheduler parks their sequences.

        Call `fit_guarantees` after the last of a series of changes.
        """
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant)
        asked = min(soft, hard)
        self._total_asked += asked - account.asked_soft
        self._total_soft += asked - account.soft
        account.soft = account.asked_soft = asked
        account.hard = hard
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

    def close(self, tenant: TenantId) -> None:
        """Drop an account; a tenant that still holds blocks cannot be dropped."""
        account = self._accounts.pop(tenant, None)
        if account is None:
            return
        if account.blocks or account.reserved:
            raise InvariantError(f"account of {tenant} is closed with {account.blocks} blocks")
        self._total_asked -= account.asked_soft
        self._total_soft -= account.soft

    def unused_guarantees(self, besides: Account) -> int:
        """Return the blocks that other tenants may still claim within their soft limits."""
        return sum(max(0, account.soft - account.blocks) for account in self if account is not besides)

    def guarantees(self, besides: Account) -> int:
        """Return the sum of the other tenants' soft limits, in blocks."""
        return self._total_soft - besides.soft
