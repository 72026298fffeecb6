"""What accounts can give to others: who lends most, and sums over all accounts. Kept up to date, not looked for.

An account whose blocks, cached blocks or guarantee change enters itself in `touched`. Its figures are taken anew when
somebody asks next, so a change costs a set's entry, and a question costs by what has changed, not by how many tenants
there are. Lenders lie in a heap; an entry counts while its account's overage is what the entry says.
"""

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.memory.accounts import Account

_SLACK = 64  # entries that the heap may carry beyond twice as many as it has good ones
UNLISTED = -1


class Figures(NamedTuple):
    """An account's part of the sums, in blocks."""

    takeable: int = 0
    unused: int = 0  # of the guarantee
    borrowed: int = 0


class Lenders:
    """All accounts as lenders."""

    __slots__ = ("_heap", "_most", "_sums", "_unsettled", "touched")

    def __init__(self) -> None:
        self.touched: set[Account] = set()  # since somebody asked
        self._unsettled: set[Account] = set()  # touched since `take_touched`
        self._heap: list[tuple[int, int, Account]] = []  # (-overage, number, account)
        self._most = _SLACK
        self._sums = Figures()

    def sums(self) -> Figures:
        """Return the sums over all accounts."""
        self._refresh()
        return self._sums

    def largest(self, besides: "Account") -> "Account | None":
        """Return who has the largest overage of those with takeable blocks, the one opened first of equals, or None."""
        self._refresh()
        heap = self._heap
        aside = None
        found = None
        while heap:
            overage, _, account = heap[0]
            if account.listed != -overage or not account.counted.takeable:
                heappop(heap)
                if account.listed == -overage:
                    account.listed = UNLISTED
            elif account is besides:
                aside = heappop(heap)
            else:
                found = account
                break
        if aside is not None:
            heappush(heap, aside)
        return found

    def take_touched(self) -> "set[Account]":
        """Return the accounts that have been touched since the last call."""
        self._refresh()
        touched, self._unsettled = self._unsettled, set()
        return touched

    def drop(self, account: "Account") -> None:
        """Forget an account that is closed."""
        self.touched.discard(account)
        self._unsettled.discard(account)
        self._count(account, Figures())
        account.listed = UNLISTED

    def audit(self, accounts: "Iterable[Account]") -> None:
        """Check the sums, and that every lender is listed, against the accounts themselves."""
        figures = [_figures(account) for account in accounts]
        if self.sums() != Figures(*map(sum, zip(*figures, strict=True))):
            raise InvariantError(f"accounts come to other sums than {self._sums}: one has changed untouched")
        listed = {account for overage, _, account in self._heap if account.listed == -overage}
        for account in accounts:
            if account.takeable and (account.listed != account.overage or account not in listed):
                raise InvariantError(f"{account.owner} can give blocks, and is no lender")

    def _refresh(self) -> None:
        if not self.touched:
            return
        for account in self.touched:
            figures = _figures(account)
            if figures != account.counted:
                self._count(account, figures)
            if figures.takeable and account.listed != account.overage:
                account.listed = account.overage
                heappush(self._heap, (-account.listed, account.number, account))
        self._unsettled |= self.touched
        self.touched.clear()
        if len(self._heap) > self._most:
            self._compact()

    def _count(self, account: "Account", figures: Figures) -> None:
        sums, before = self._sums, account.counted
        self._sums = Figures(
            sums.takeable + figures.takeable - before.takeable,
            sums.unused + figures.unused - before.unused,
            sums.borrowed + figures.borrowed - before.borrowed,
        )
        account.counted = figures

    def _compact(self) -> None:
        """Throw out what counts no more, and what lies here twice."""
        accounts = {account for overage, _, account in self._heap if account.listed == -overage}
        self._heap = [(-account.listed, account.number, account) for account in accounts]
        heapify(self._heap)
        self._most = 2 * len(self._heap) + _SLACK


def _figures(account: "Account") -> Figures:
    return Figures(account.takeable, max(0, account.soft - account.blocks), account.borrowed)
