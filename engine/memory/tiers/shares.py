"""Who may have something in host memory, and who has most above its share: found by what has changed.

An account's share is what its ceiling is of all ceilings together, where these do not fit. Accounts with idle blocks
lie in a heap by what they have above it; an entry counts while it is the account's last one, and is put right when it
comes up, since what an account has may have become less.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from engine.errors import InvariantError
from engine.memory.accounts import AccountOwner
from engine.memory.tiers.hosted import HostAccount

UNLISTED = float("-inf")


class Shares:
    """All accounts, and those that could give up a slab, most above its share first."""

    __slots__ = ("_accounts", "_heap", "_is_stale", "_number", "_total_ceiling", "num_slabs")

    def __init__(self, num_slabs: int) -> None:
        self.num_slabs = num_slabs  # that there are
        self._accounts: dict[AccountOwner, HostAccount] = {}
        self._total_ceiling = 0  # of all of them
        self._heap: list[tuple[float, int, HostAccount]] = []
        self._number = 0  # of the last entry: accounts have no order of their own
        self._is_stale = False  # shares have changed: all has to be entered anew

    def __iter__(self) -> Iterator[HostAccount]:
        return iter(self._accounts.values())

    def get(self, owner: AccountOwner) -> HostAccount | None:
        """Return an owner's account, if there is one."""
        return self._accounts.get(owner)

    def open(self, owner: AccountOwner) -> HostAccount:
        """Return a new account of an owner who has none; its ceiling is 0."""
        account = self._accounts[owner] = HostAccount(owner)
        return account

    def close_if_done(self, account: HostAccount) -> None:
        """Close an account that may have nothing, and has and claims nothing."""
        if not (account.ceiling or account.used or account.num_claims):
            self._accounts.pop(account.owner, None)

    def set_ceiling(self, account: HostAccount, num_slabs: int) -> None:
        """Change an account's ceiling, and with it everybody's share."""
        self._total_ceiling += num_slabs - account.ceiling
        account.ceiling = num_slabs
        self._is_stale = True

    def overage(self, account: HostAccount) -> float:
        """Return the slabs that an account has above its share."""
        if self._total_ceiling <= self.num_slabs:
            return float(account.used - account.ceiling)
        return account.used - account.ceiling * self.num_slabs / self._total_ceiling

    def grown(self, account: HostAccount) -> None:
        """Note that an account has more than before, or something to give for the first time."""
        if account.num_idle and self.overage(account) > account.listed:
            self._enter(account)

    def largest(self) -> HostAccount | None:
        """Return who is most above its share of those with idle blocks, or None."""
        if self._is_stale:
            self._rebuild()
        heap = self._heap
        while heap:
            overage, _, account = heap[0]
            if -overage != account.listed:
                heappop(heap)
            elif not account.num_idle:
                heappop(heap)
                account.listed = UNLISTED
            elif self.overage(account) != account.listed:
                heappop(heap)
                self._enter(account)
            else:
                return account
        return None

    def _enter(self, account: HostAccount) -> None:
        account.listed = self.overage(account)
        self._number += 1
        heappush(self._heap, (-account.listed, self._number, account))

    def audit(self) -> None:
        """Recount what all together may have. Raises InvariantError."""
        if sum(account.ceiling for account in self) != self._total_ceiling:
            raise InvariantError("the ceilings of all accounts are not what they sum up to")

    def _rebuild(self) -> None:
        self._is_stale = False
        self._heap.clear()
        for account in self:
            account.listed = self.overage(account) if account.num_idle else UNLISTED
            if account.num_idle:
                self._number += 1
                self._heap.append((-account.listed, self._number, account))
        heapify(self._heap)
