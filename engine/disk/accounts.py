"""Whose slabs are on the disk, and which go first.

    Slab       one block that is on the disk, or on its way there
    Account    an owner's slabs under its ceiling, in the order in which they are given up
    Accounts   all of them; when the disk is full, the owner goes first that uses most of what it may

An owner that keeps to its share of the disk (its ceiling's part of all ceilings) therefore never loses a slab to
another one's write: somebody else uses more of his.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.disk.seal import Sealer
from engine.memory.eviction.base import BlockKey


@dataclass(slots=True, eq=False)
class Slab:
    """One block. The lowest score is given up first."""

    key: BlockKey
    account: "Account"
    slot: int
    last_use: float  # unix seconds
    value: float  # seconds
    proof: bytes = b""
    stored: bool = False  # whole and named on the disk
    readers: int = 0

    @property
    def score(self) -> float:
        """Weigh recency and value."""
        return self.last_use + self.value


@dataclass(slots=True, eq=False)
class Account:
    """One owner."""

    owner: str
    ceiling: int | None = None  # slots; None: not known yet, so nothing of it is found
    sealer: Sealer | None = None  # None as long as the ceiling is
    check: bytes | None = None  # of the sealer that its slabs were written with; None: nothing was ever written
    slabs: dict[BlockKey, Slab] = field(default_factory=dict)
    sessions: dict[bytes, bytes] = field(default_factory=dict)  # as they lie on the disk
    _order: list[tuple[float, int, Slab]] = field(default_factory=list)  # a score may have risen since
    _count: int = 0

    @property
    def used(self) -> int:
        """Slots that it has."""
        return len(self.slabs)

    @property
    def part(self) -> float:
        """Say how much of its ceiling it uses."""
        return self.used / self.ceiling if self.ceiling else float(self.used)

    def add(self, slab: Slab) -> None:
        """Take a slab."""
        self.slabs[slab.key] = slab
        if slab.stored:
            self.rank(slab)

    def rank(self, slab: Slab) -> None:
        """Put a slab in order whose score is new, or lower than it was."""
        self._count += 1
        heapq.heappush(self._order, (slab.score, self._count, slab))
        if len(self._order) > 2 * len(self.slabs) + 64:
            self._order = [(one.score, n, one) for n, one in enumerate(self.slabs.values()) if one.stored]
            self._count = len(self._order)
            heapq.heapify(self._order)

    def least(self) -> Slab | None:
        """Return the slab that is to be given up first; those that are being read or written are not."""
        kept: list[tuple[float, int, Slab]] = []
        found = None
        while self._order:
            score, number, slab = self._order[0]
            if self.slabs.get(slab.key) is not slab:
                heapq.heappop(self._order)
            elif slab.score > score:
                heapq.heapreplace(self._order, (slab.score, number, slab))
            elif slab.readers:
                kept.append(heapq.heappop(self._order))
            else:
                found = slab
                break
        for entry in kept:
            heapq.heappush(self._order, entry)
        return found


class Accounts:
    """All owners."""

    def __init__(self) -> None:
        self._all: dict[str, Account] = {}
        self._fullest: list[tuple[float, str]] = []  # negative parts; stale entries are passed over

    def __iter__(self) -> Iterator[Account]:
        return iter(self._all.values())

    def get(self, owner: str) -> Account | None:
        """Return an owner's account, if there is one."""
        return self._all.get(owner)

    def open(self, owner: str) -> Account:
        """Return an owner's account."""
        account = self._all.get(owner)
        if account is None:
            account = self._all[owner] = Account(owner)
        return account

    def remove(self, owner: str) -> None:
        """Close an account."""
        self._all.pop(owner, None)

    def note(self, account: Account) -> None:
        """Note that an account uses more than before, or may use less."""
        heapq.heappush(self._fullest, (-account.part, account.owner))
        if len(self._fullest) > 2 * len(self._all) + 1024:
            self._fullest = [(-one.part, one.owner) for one in self._all.values() if one.used]
            heapq.heapify(self._fullest)

    def victim(self, writer: Account) -> Slab | None:
        """Return the slab that is to go when the disk is full and `writer` has another one to write.

        That of the owner which uses most of what it may, `writer` counted as if it had it already. None: its own are
        all that may go, and they are being read or written.
        """
        mine = (writer.used + 1) / writer.ceiling if writer.ceiling else 0.0
        skipped: list[tuple[float, str]] = []
        found: Slab | None = None
        while self._fullest and found is None:
            part, owner = self._fullest[0]
            account = self._all.get(owner)
            if account is None or account.part != -part:
                heapq.heappop(self._fullest)
                if account is not None and account.used:
                    self._repair(account, -part)
                continue
            if account is writer or -part < mine:
                break
            found = account.least()
            if found is None:
                skipped.append(heapq.heappop(self._fullest))
        for entry in skipped:
            heapq.heappush(self._fullest, entry)
        return found or writer.least()

    def _repair(self, account: Account, noted: float) -> None:
        """Put an account back in its place that uses less than when it was noted last."""
        if account.part < noted:
            heapq.heappush(self._fullest, (-account.part, account.owner))
