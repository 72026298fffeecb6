"""What each worker holds of each holder's limits, and what may be pushed next: pure, no sockets and no clock.

A grant moves from one worker to another in two pushes: the one that shrinks is pushed at once, the one that grows only
gets what the acked (or still unacked, whichever is larger) grants of the others leave of the limit. So the workers'
grants together never pass a limit through growth, whichever messages are late or lost. A shrink is never held up.

Pushes carry (version, epoch) and a worker ignores what is not newer. Epochs rise with every push and start at the
leader's term, so a controller that has lost its lock without noticing cannot undo what its successor pushed.

What makes a push long are the token ids of share groups' prefixes. A push that would grow too long carries a group's
limits at once and its prefixes in a push that follows.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping

from gateway.controller.books import Book, Mark, Push, larger
from gateway.controller.errors import Superseded
from gateway.controller.grants import Shares, by_pools, divide_policy
from gateway.controller.holders import NOTHING, Amounts, Grant, GroupPolicy, Holder, Policy, limits
from tenants.contracts import PolicyView

TERM_BITS = 24  # pushes of one term before its epochs reach into the next one's: 16 million
MAX_UNACKED = 8  # pushes on the way to one worker; what comes after is merged into the next
MAX_PUSH_TOKENS = 2_000_000  # of prefixes in one push, at most 10 MB of them; one group alone may have more


class Ledger:
    """Grants of all workers. Not thread-safe; owned by the fleet's loop.

    Args:
        term: a number that is larger for every later leader.
    """

    def __init__(self, *, term: int) -> None:
        self.term = term
        self.version = 0
        self._epoch = term << TERM_BITS
        self._policies: dict[Holder, Policy] = {}
        self._shares: dict[Holder, Shares] = {}  # of those whose limits follow demand
        self._noted: dict[Holder, Mapping[str, tuple[float, float]]] = {}
        self._pools: dict[str, int] = {}
        self._books: dict[str, Book] = {}
        self._dirty: set[Holder] = set()

    @property
    def holders(self) -> frozenset[Holder]:
        """Those whose policies are known."""
        return frozenset(self._policies)

    # ------------------------------------------------------------ what is wanted

    def set_policies(self, version: int, changed: Mapping[Holder, Policy], removed: Iterable[Holder] = ()) -> None:
        """Take up the policies of `version`; one that is older than what is known is ignored."""
        if version < self.version:
            return
        self.version = version
        for holder in removed:
            self._shares.pop(holder, None)
            if self._policies.pop(holder, None) is not None:
                self._dirty.add(holder)
        self._policies.update(changed)
        self._dirty.update(changed)

    def set_workers(self, pools: Mapping[str, int]) -> None:
        """Divide over these workers ({id: pool in bytes}) from now on; one left out is forgotten with all it holds."""
        if pools == self._pools:
            return
        self._pools = dict(pools)
        for worker in set(self._books) - set(pools):
            del self._books[worker]
        for worker in pools:
            self._books.setdefault(worker, Book())
        self._dirty.update(self._policies)

    def set_shares(self, shares: Mapping[Holder, Shares]) -> None:
        """Divide these holders' limits by these shares from now on, as long as the set of workers stays as it is."""
        self._shares.update(shares)
        self._dirty.update(shares.keys() & self._policies.keys())

    def note(self, shares: Mapping[Holder, Mapping[str, tuple[float, float]]]) -> None:
        """Take up what predecessors have noted: the parts, of bytes and of places, that workers may hold at most."""
        self._noted = dict(shares)

    def is_settled(self, holder: Holder) -> bool:
        """Tell whether every worker holds its share of a holder's limits, or its push is on the way."""
        return holder not in self._dirty

    @property
    def tenants(self) -> dict[str, PolicyView]:
        """The tenants' policies, by their ids."""
        return {holder.name: policy for holder, policy in self._policies.items() if isinstance(policy, PolicyView)}

    @property
    def group_guarantees(self) -> int:
        """What is guaranteed to share groups together, in bytes."""
        return sum(policy.kv_soft_bytes for policy in self._policies.values() if isinstance(policy, GroupPolicy))

    @property
    def pools(self) -> Mapping[str, int]:
        """The workers among which limits are divided: {id: pool in bytes}."""
        return self._pools

    def held_by_all(self, holder: Holder) -> dict[str, Amounts]:
        """Return what each worker holds of a holder's limits; those that have not told share what is left of them."""
        policy = self._policies.get(holder)
        told = {worker: self.held(worker, holder) for worker, book in self._books.items() if book.known}
        silent = self._books.keys() - told.keys()
        if policy is None or not silent:
            return told
        left = [
            max(0, limit - sum(held)) // len(silent)
            for limit, *held in zip(limits(policy), *told.values(), strict=True)
        ]
        return told | dict.fromkeys(silent, Amounts(*left))

    # ------------------------------------------------------------ what workers say

    def connect(self, worker: str, applied: Mark, grants: Mapping[Holder, Grant]) -> None:
        """A worker's stream is new and says what it has applied; it gets a snapshot next.

        A database restored from a backup counts versions from below what workers have applied. Pushes then carry the
        worker's own version and a higher epoch, so that the truth in the database still wins.
        """
        book = self._books[worker]
        book.connected = book.known = book.needs_snapshot = True
        book.floor = applied
        book.acked = dict(grants)
        book.sent = {}
        # Pushes of an earlier stream may still be on their way inside the worker: they count as held until acked.
        book.unacked = deque(push for push in book.unacked if push.mark > applied)
        self._epoch = max(self._epoch, applied[1])
        self._dirty.update(self._policies)

    def disconnect(self, worker: str) -> None:
        """A worker's stream is gone; it still holds what it was granted."""
        if worker in self._books:
            self._books[worker].connected = False

    def acknowledge(self, worker: str, mark: Mark) -> int:
        """A worker has applied everything up to `mark`: return the newest policy version in it, 0 for nothing new.

        Raises:
            Superseded: the mark is higher than any that was sent.
        """
        book = self._books.get(worker)
        if book is None or not book.connected:
            return 0
        if mark > max(book.sent_mark, book.floor):
            raise Superseded(f"{worker} has applied {mark}, sent was {book.sent_mark}")
        return max((push.version for push in book.take_acked(mark)), default=0)

    def settle(self, worker: str, mark: Mark) -> int:
        """Nobody is above the limits of the push with `mark` any more: return its policy version, 0 for none known."""
        book = self._books.get(worker)
        return dict(book.settling).get(mark, 0) if book is not None else 0

    # ------------------------------------------------------------ what to push

    def plan(self) -> list[Push]:
        """Return the pushes that are due, and count them as sent."""
        pushes, is_cut = self._plan_one_each()
        while is_cut:
            more, is_cut = self._plan_one_each()
            pushes += more
        return pushes

    def _plan_one_each(self) -> tuple[list[Push], bool]:
        """Return at most one push a worker, and whether any was cut for its length."""
        ready = {
            worker: book
            for worker, book in sorted(self._books.items())
            if book.connected and (book.needs_snapshot or len(book.unacked) < MAX_UNACKED)
        }
        changes: dict[str, dict[Holder, Grant]] = {worker: {} for worker in ready}
        removed: dict[str, list[Holder]] = {worker: [] for worker in ready}
        settled = set()
        is_behind = any(book.connected and worker not in ready for worker, book in self._books.items())
        for holder in self._dirty:
            due, is_full = self._due(holder)
            for worker, book in ready.items():
                grant = due.get(worker)
                if grant is None and holder in book.sent:
                    removed[worker].append(holder)
                elif grant is not None and (book.needs_snapshot or book.sent.get(holder) != grant):
                    changes[worker][holder] = grant
            if is_full and not is_behind:
                settled.add(holder)
        cut = {holder for grants in changes.values() for holder in _cut(grants)}
        self._dirty -= settled - cut
        pushes = [
            self._push(worker, changes[worker], tuple(sorted(removed[worker])))
            for worker, book in ready.items()
            if changes[worker] or removed[worker] or book.needs_snapshot or book.sent_version < self.version
        ]
        return pushes, bool(cut)

    def held(self, worker: str, holder: Holder) -> Amounts:
        """Return the most that a worker may hold now: acked or on its way, whichever is larger."""
        book = self._books[worker]
        if book.known:
            return book.most(holder)
        policy = self._policies.get(holder)
        return self._most(worker, holder, policy) if policy else NOTHING

    def _most(self, worker: str, holder: Holder, policy: Policy) -> Amounts:
        """Return the most that a member which this controller has not met may hold, see docs/decisions."""
        home = divide_policy(policy, by_pools(self._pools))[worker].amounts
        noted = self._noted.get(holder, {}).get(worker)
        if noted is None:
            return home
        part, places = noted
        limit = limits(policy)
        parts = Amounts(part, part, places, places, part, part)  # type: ignore[arg-type]  # parts of each
        # Rounding may have brought it one more than its part, and of requests at once it had one first.
        most = Amounts(*(min(whole, math.ceil(whole * share) + 1) for whole, share in zip(limit, parts, strict=True)))
        return larger(home, most)

    def _due(self, holder: Holder) -> tuple[dict[str, Grant], bool]:
        """Return what each worker may be granted now (none: the holder is gone) and whether that is its full share."""
        policy = self._policies.get(holder)
        if policy is None:
            return {}, True
        targets = divide_policy(policy, self._division(holder))
        held = {worker: self.held(worker, holder) for worker in self._pools}
        if all(held[worker] == target.amounts for worker, target in targets.items()):
            return targets, True
        total = [sum(amounts) for amounts in zip(*held.values(), strict=True)]
        due = {}
        for worker in sorted(self._pools):
            target, limit = targets[worker].amounts, limits(policy)
            granted = []
            for i, own in enumerate(held[worker]):
                room = max(own, limit[i] - (total[i] - own))
                granted.append(min(target[i], room))
                total[i] += max(granted[i] - own, 0)
            due[worker] = targets[worker].with_amounts(Amounts(*granted))
        return due, due == targets

    def _division(self, holder: Holder) -> Shares:
        shares = self._shares.get(holder)
        return shares if shares is not None and shares.covers(self._pools) else by_pools(self._pools)

    def _push(self, worker: str, grants: dict[Holder, Grant], removed: tuple[Holder, ...]) -> Push:
        book = self._books[worker]
        self._epoch += 1
        push = Push(
            worker=worker,
            mark=(max(self.version, book.floor[0]), self._epoch),
            version=self.version,
            snapshot=book.needs_snapshot,
            grants=grants,
            removed=removed,
        )
        if push.snapshot:
            book.sent = {}
        book.sent.update(grants)
        for holder in removed:
            book.sent.pop(holder, None)
        book.needs_snapshot = False
        book.sent_mark, book.sent_version = push.mark, push.version
        book.unacked.append(push)
        return push


def _cut(grants: dict[Holder, Grant]) -> set[Holder]:
    """Take the token ids that are too many for one push out of `grants`; return whose were taken."""
    cut = set()
    num_tokens = 0
    for holder, grant in grants.items():
        if grant.num_tokens and num_tokens and num_tokens + grant.num_tokens > MAX_PUSH_TOKENS:
            grants[holder] = grant.without_tokens()
            cut.add(holder)
        else:
            num_tokens += grant.num_tokens
    return cut
