"""One worker's page of the ledger: what it holds, and what is on the way to it. Pure, as the ledger is."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gateway.controller.holders import NOTHING, Amounts, Grant, Holder

Mark = tuple[int, int]  # (version, epoch)

MAX_SETTLING = 64  # pushes of one worker that may still be told to have settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """One message to one worker. A snapshot replaces all it holds, a delta the holders that it names."""

    worker: str
    mark: Mark
    version: int  # of the policies in it; `mark` may carry a higher one, see `Ledger.connect`
    snapshot: bool
    grants: Mapping[Holder, Grant]
    removed: tuple[Holder, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Token ids in it."""
        return sum(grant.num_tokens for grant in self.grants.values())


@dataclass(slots=True)
class Book:
    """One worker's page of the ledger."""

    connected: bool = False
    known: bool = False  # it has told this controller what it holds
    needs_snapshot: bool = True
    floor: Mark = (0, 0)  # what it had applied when it connected
    acked: dict[Holder, Grant] = field(default_factory=dict)
    sent: dict[Holder, Grant] = field(default_factory=dict)
    sent_mark: Mark = (0, 0)
    sent_version: int = 0
    unacked: deque[Push] = field(default_factory=deque)
    settling: deque[tuple[Mark, int]] = field(default_factory=lambda: deque(maxlen=MAX_SETTLING))  # acked lately

    def take_acked(self, mark: Mark) -> Iterator[Push]:
        """Hold what was pushed up to `mark`, which the worker has applied; return each of these pushes."""
        while self.unacked and self.unacked[0].mark <= mark:
            push = self.unacked.popleft()
            self.settling.append((push.mark, push.version))
            if push.snapshot:
                self.acked = {}
            self.acked.update(push.grants)
            for holder in push.removed:
                self.acked.pop(holder, None)
            yield push

    def most(self, holder: Holder) -> Amounts:
        """Return the most that a worker which has told what it holds may hold now: acked, or on its way."""
        held = self.acked[holder].amounts if holder in self.acked else NOTHING
        for push in self.unacked:
            if holder in push.grants:
                held = larger(held, push.grants[holder].amounts)
        return held


def larger(one: Amounts, other: Amounts) -> Amounts:
    """Return the larger of each."""
    return Amounts(*map(max, one, other))
