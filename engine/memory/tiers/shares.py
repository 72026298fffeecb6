"""Who has most above its share of host memory: found by what has changed, not by looking at all accounts.

An account's share is what its ceiling is of all ceilings together, where these do not fit. Accounts with idle blocks
lie in a heap by what they have above it; an entry counts while it is the account's last one, and is put right when it
comes up, since what an account has may have become less.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from engine.memory.tiers.hosted import HostAccount

UNLISTED = float("-inf")


class Shares:
    """The accounts that could give up a slab, most above its share first."""

    __slots__ = ("_heap", "_is_stale", "_num_slabs", "_number", "total_ceiling")

    def __init__(self, num_slabs: int) -> None:
        self.total_ceiling = 0  # of all accounts
        self._num_slabs = num_slabs
        self._heap: list[tuple[float, int, HostAccount]] = []
        self._number = 0  # of the last entry: accounts have no order of their own
        self._is_stale = False  # shares have changed: all has to be entered anew

    def set_ceiling(self, account: HostAccount, num_slabs: int) -> None:
        """Change an account's ceiling, and with it everybody's share."""
        self.total_ceiling += num_slabs - account.ceiling
        account.ceiling = num_slabs
        self._is_stale = True

    def overage(self, account: HostAccount) -> float:
        """Return the slabs that an account has above its share."""
        if self.total_ceiling <= self._num_slabs:
            return float(account.used - account.ceiling)
        return account.used - account.ceiling * self._num_slabs / self.total_ceiling

    def grown(self, account: HostAccount) -> None:
        """Note that an account has more than before, or something to give for the first time."""
        if account.num_idle and self.overage(account) > account.listed:
            self._enter(account)

    def largest(self, accounts: Iterable[HostAccount]) -> HostAccount | None:
        """Return who is most above its share of those with idle blocks, or None. `accounts`: all there are."""
        if self._is_stale:
            self._rebuild(accounts)
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

    def _rebuild(self, accounts: Iterable[HostAccount]) -> None:
        self._is_stale = False
        self._heap.clear()
        for account in accounts:
            account.listed = self.overage(account) if account.num_idle else UNLISTED
            if account.num_idle:
                self._number += 1
                self._heap.append((-account.listed, self._number, account))
        heapify(self._heap)
