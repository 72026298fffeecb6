"""Grants move between workers without ever summing to more than the limit, and the newest policy always wins."""

from array import array
from collections import deque
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.controller.books import Push
from gateway.controller.errors import Superseded
from gateway.controller.grants import divide
from gateway.controller.holders import (
    NOTHING,
    Amounts,
    Grant,
    GroupGrant,
    GroupPolicy,
    Holder,
    Policy,
    PrefixTokens,
    limits,
    share_group,
    tenant,
)
from gateway.controller.ledger import MAX_PUSH_TOKENS, MAX_UNACKED, Ledger
from tenants.contracts import PolicyView

HOLDERS = (tenant("minnow"), tenant("whale"), share_group("minnow"))
WORKERS = ("w0", "w1", "w2")
T, U, G = tenant("t"), tenant("u"), share_group("g")


def policy(version: int, amount: int) -> PolicyView:
    """Return a policy whose shared limits all derive from `amount`."""
    return PolicyView(
        version=version,
        weight=1.0,
        kv_soft_bytes=amount // 2,
        kv_hard_bytes=amount,
        max_running=amount % 40,
        max_queued=amount % 7,
        rpm=0,
        tpm=0,
        max_context=8192,
        max_output=4096,
        priority="standard",
    )


def group(amount: int, **prefixes: tuple[PrefixTokens, ...]) -> GroupPolicy:
    """Return a share group's policy whose limits derive from `amount`."""
    return GroupPolicy(namespace=b"n" * 32, kv_soft_bytes=amount // 2, kv_hard_bytes=amount, prefixes=prefixes)


def prefix(name: str, num_tokens: int = 3, form: str = "form") -> PrefixTokens:
    """Return a prefix of so many tokens."""
    return PrefixTokens(name, form, array("I", [7]) * num_tokens)


class Worker:
    """Applies pushes as the protocol says: in the order of (version, epoch), older ones ignored."""

    def __init__(self) -> None:
        self.mark = (0, 0)
        self.grants: dict[Holder, Grant] = {}
        self.inbox: deque[Push] = deque()
        self.acks: deque[tuple[int, int]] = deque()
        self.connected = False

    def apply(self) -> None:
        """Take up the next push."""
        push = self.inbox.popleft()
        if push.mark > self.mark:
            if push.snapshot:
                self.grants = {}
            self.grants.update(push.grants)
            for holder in push.removed:
                self.grants.pop(holder, None)
            self.mark = push.mark
        self.acks.append(self.mark)


class Fleet(RuleBasedStateMachine):
    """Drive a ledger and its workers through lost streams, late acks, joins and failovers."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = {name: Worker() for name in WORKERS}
        self.members: dict[str, int] = {}
        self.policies: dict[Holder, Policy] = {}
        self.highest: dict[Holder, Amounts] = {}
        self.version = 0
        self.term = 1
        self.ledger = Ledger(term=1)

    def _pump(self) -> None:
        for push in self.ledger.plan():
            self.workers[push.worker].inbox.append(push)

    def _connect(self, name: str) -> None:
        worker = self.workers[name]
        worker.inbox.clear()
        worker.acks.clear()
        worker.connected = True
        self.ledger.connect(name, worker.mark, worker.grants)

    @rule(holder=st.sampled_from(HOLDERS), amount=st.integers(0, 1000))
    def write_policy(self, holder: Holder, amount: int) -> None:
        """An operator writes a policy or a share group, whose prefixes nobody has tokenised yet."""
        self.version += 1
        self._set(holder, policy(self.version, amount) if holder.kind == "tenant" else group(amount))

    @precondition(lambda self: any(holder.kind == "share_group" for holder in self.policies))
    @rule(data=st.data())
    def tokenise(self, data: st.DataObject) -> None:
        """Prefixes of a group are known for some workers: no new version."""
        holder = data.draw(st.sampled_from([holder for holder in self.policies if holder.kind == "share_group"]))
        known = st.lists(st.sampled_from("abc"), max_size=3, unique=True)
        prefixes = {name: tuple(map(prefix, data.draw(known))) for name in WORKERS}
        old = self.policies[holder]
        assert isinstance(old, GroupPolicy)
        self._set(holder, replace(old, prefixes=prefixes))

    @precondition(lambda self: self.policies)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """A holder is gone; its name may come back."""
        holder = data.draw(st.sampled_from(list(self.policies)))
        self.version += 1
        del self.policies[holder]
        self.ledger.set_policies(self.version, {}, [holder])
        self._pump()

    def _set(self, holder: Holder, new: Policy) -> None:
        self.policies[holder] = new
        highest = zip(self.highest.get(holder, NOTHING), limits(new), strict=True)
        self.highest[holder] = cast("Amounts", tuple(map(max, highest)))
        self.ledger.set_policies(self.version, {holder: new})
        self._pump()

    @rule(name=st.sampled_from(WORKERS), pool=st.integers(0, 100))
    def join(self, name: str, pool: int) -> None:
        """A worker joins, or comes back with another pool."""
        self.members[name] = pool
        self.ledger.set_workers(self.members)
        self._connect(name)
        self._pump()

    @precondition(lambda self: any(worker.inbox for worker in self.workers.values()))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """A worker's step takes up a push."""
        name = data.draw(st.sampled_from([name for name, worker in self.workers.items() if worker.inbox]))
        self.workers[name].apply()

    @precondition(lambda self: any(worker.acks for worker in self.workers.values()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """An ack arrives."""
        name = data.draw(st.sampled_from([name for name, worker in self.workers.items() if worker.acks]))
        self.ledger.acknowledge(name, self.workers[name].acks.popleft())
        self._pump()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        """A stream breaks, with what was on it, and comes back."""
        name = data.draw(st.sampled_from(sorted(self.members)))
        self.ledger.disconnect(name)
        inside = deque(self.workers[name].inbox) if data.draw(st.booleans()) else deque()
        self._connect(name)
        self.workers[name].inbox = inside  # read from the old stream already, applied after the worker's Hello
        self._pump()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def break_stream(self, data: st.DataObject) -> None:
        """A stream breaks and stays away."""
        name = data.draw(st.sampled_from(sorted(self.members)))
        self.ledger.disconnect(name)
        self.workers[name].connected = False
        self.workers[name].inbox.clear()
        self.workers[name].acks.clear()

    @rule()
    def fail_over(self) -> None:
        """Another controller takes over and meets all workers before it plans."""
        self.term += 1
        self.ledger = Ledger(term=self.term)
        self.ledger.set_policies(self.version, self.policies)
        self.ledger.set_workers(self.members)
        for name in self.members:
            self._connect(name)
        self._pump()

    @invariant()
    def grants_stay_within_the_limits(self) -> None:
        """What workers really hold never sums to more than the highest limit that was ever in force."""
        for holder, highest in self.highest.items():
            held = [worker.grants[holder].amounts for worker in self.workers.values() if holder in worker.grants]
            for amounts, limit in zip(zip(*held, strict=True), highest, strict=False):
                assert sum(amounts) <= limit

    def teardown(self) -> None:
        """Once all messages have arrived every worker holds exactly its share of the newest policies."""
        for name in self.members:
            if not self.workers[name].connected:
                self._connect(name)
        self._pump()
        while any(worker.inbox or worker.acks for worker in self.workers.values()):
            for name, worker in self.workers.items():
                while worker.inbox:
                    worker.apply()
                while worker.acks:
                    self.ledger.acknowledge(name, worker.acks.popleft())
            self._pump()
        expected = divide(self.policies, self.members)
        for name in self.members:
            assert self.workers[name].grants == expected[name]
            assert self.workers[name].mark[0] == self.version


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def connected(**pools: int) -> Ledger:
    """Return a ledger whose workers are all connected and empty."""
    ledger = Ledger(term=1)
    ledger.set_workers(pools)
    for worker in pools:
        ledger.connect(worker, (0, 0), {})
    return ledger


def test_a_joining_worker_waits_for_the_others_to_shrink() -> None:
    """The newcomer gets nothing until the first worker has acked its smaller grant."""
    ledger = connected(a=1)
    ledger.set_policies(1, {T: policy(1, 100)})
    [first] = ledger.plan()
    ledger.acknowledge("a", first.mark)
    ledger.set_workers({"a": 1, "b": 1})
    ledger.connect("b", (0, 0), {})
    shrink, wait = ledger.plan()
    assert (shrink.grants[T].kv_hard_bytes, wait.grants[T].kv_hard_bytes) == (50, 0)
    ledger.acknowledge("b", wait.mark)
    assert ledger.plan() == []
    ledger.acknowledge("a", shrink.mark)
    [grow] = ledger.plan()
    assert (grow.worker, grow.grants[T].kv_hard_bytes, grow.version) == ("b", 50, 1)
    assert grow.mark > wait.mark


def test_every_version_reaches_every_worker() -> None:
    """A worker whose grants a version does not change is told the version all the same: requests wait for it."""
    ledger = connected(a=1, b=0)
    ledger.set_policies(1, {T: policy(1, 100)})
    ledger.plan()
    ledger.set_policies(2, {T: policy(2, 90)})
    assert {(push.worker, push.version) for push in ledger.plan()} == {("a", 2), ("b", 2)}


def test_an_older_version_loses() -> None:
    """Policies read before a newer version was known change nothing."""
    ledger = connected(a=1)
    ledger.set_policies(5, {T: policy(5, 50)})
    ledger.set_policies(4, {T: policy(4, 100)})
    [push] = ledger.plan()
    assert (push.version, push.grants[T].kv_hard_bytes) == (5, 50)


def test_a_removed_tenant_is_named_in_a_delta() -> None:
    """A worker is told once to forget a tenant that is gone."""
    ledger = connected(a=1)
    ledger.set_policies(1, {T: policy(1, 100), U: policy(1, 10)})
    ledger.plan()
    ledger.set_policies(2, {}, [T])
    [push] = ledger.plan()
    assert (push.snapshot, push.removed, dict(push.grants)) == (False, (T,), {})
    assert ledger.plan() == []


def test_a_slow_worker_gets_merged_pushes() -> None:
    """A worker that does not ack stops being pushed to; its first ack brings one push with the newest of all."""
    ledger = connected(a=1)
    marks = []
    for version in range(1, MAX_UNACKED + 5):
        ledger.set_policies(version, {T: policy(version, version)})
        marks += [push.mark for push in ledger.plan()]
    assert len(marks) == MAX_UNACKED
    assert ledger.acknowledge("a", marks[0]) == 1
    [push] = ledger.plan()
    assert (push.version, push.grants[T].kv_hard_bytes) == (MAX_UNACKED + 4, MAX_UNACKED + 4)


def test_a_restored_database_still_wins() -> None:
    """Workers that have applied a higher version than the database knows take up what the database says."""
    ledger = Ledger(term=1)
    ledger.set_workers({"a": 1})
    ledger.set_policies(3, {T: policy(3, 100)})
    ledger.connect("a", (9, 77 << 24), {})
    [push] = ledger.plan()
    assert push.mark[0] == 9
    assert push.mark > (9, 77 << 24)
    assert ledger.acknowledge("a", push.mark) == 3


def test_an_ack_of_a_foreign_push_is_noticed() -> None:
    """A worker that has applied what this controller never sent has another controller."""
    ledger = connected(a=1)
    ledger.set_policies(1, {T: policy(1, 100)})
    ledger.plan()
    with pytest.raises(Superseded, match="a has applied"):
        ledger.acknowledge("a", (1, 5 << 24))


def test_a_forgotten_worker_frees_its_grants() -> None:
    """Once a worker is forgotten the rest get its share at once."""
    ledger = connected(a=1, b=1)
    ledger.set_policies(1, {T: policy(1, 100)})
    for push in ledger.plan():
        ledger.acknowledge(push.worker, push.mark)
    ledger.disconnect("b")
    assert ledger.plan() == []
    ledger.set_workers({"a": 1})
    [push] = ledger.plan()
    assert push.grants[T].kv_hard_bytes == 100


def test_a_group_is_told_again_only_when_it_changed() -> None:
    """Another holder's version does not send a group's prefixes once more, and prefixes alone need no version."""
    ledger = connected(a=1)
    ledger.set_policies(1, {T: policy(1, 100), G: group(10)})
    ledger.plan()
    ledger.set_policies(1, {G: group(10, a=(prefix("p"),))})
    [tokenised] = ledger.plan()
    assert (tokenised.version, tokenised.snapshot, list(tokenised.grants)) == (1, False, [G])
    ledger.set_policies(2, {T: policy(2, 90)})
    ledger.set_policies(2, {G: group(10, a=(prefix("p"),))})
    [other] = ledger.plan()
    assert list(other.grants) == [T]


def test_a_name_that_comes_back_with_another_secret_is_pushed() -> None:
    """A group that was removed and made anew between two reads is told with its new namespace."""
    ledger = connected(a=1)
    ledger.set_policies(1, {G: group(10)})
    ledger.plan()
    ledger.set_policies(3, {G: replace(group(10), namespace=b"o" * 32)})
    [push] = ledger.plan()
    grant = push.grants[G]
    assert isinstance(grant, GroupGrant)
    assert grant.namespace == b"o" * 32


def test_a_long_push_is_split() -> None:
    """The snapshot names every group with its limits; prefixes that are too many for it follow."""
    ledger = connected(a=1)
    groups = [share_group(name) for name in ("f", "g", "h")]
    long = MAX_PUSH_TOKENS // 2 + 1
    ledger.set_policies(1, {name: group(10, a=(prefix(name.name, long),)) for name in groups})
    snapshot, *later = ledger.plan()
    assert snapshot.snapshot
    assert set(snapshot.grants) == set(groups)
    assert [push.snapshot for push in later] == [False, False]
    assert [push.num_tokens for push in (snapshot, *later)] == [long] * 3
    assert len({push.mark for push in (snapshot, *later)}) == 3
    assert ledger.plan() == []


def test_a_long_group_waits_for_a_slow_worker_but_its_limits_do_not() -> None:
    """With more long groups than pushes may be on the way, acks bring the rest, and no limit waits for one."""
    ledger = connected(a=1)
    groups = [share_group(f"g{number:02}") for number in range(MAX_UNACKED + 3)]
    ledger.set_policies(1, {name: group(10, a=(prefix(name.name, MAX_PUSH_TOKENS),)) for name in groups})
    pushes = ledger.plan()
    assert len(pushes) == MAX_UNACKED
    assert set(pushes[0].grants) == set(groups)
    worker = Worker()
    worker.inbox.extend(pushes)
    while worker.inbox:
        worker.apply()
        ledger.acknowledge("a", worker.acks.popleft())
        worker.inbox.extend(ledger.plan())
    assert all(worker.grants[name].num_tokens == MAX_PUSH_TOKENS for name in groups)


def test_one_group_may_be_longer_than_a_push() -> None:
    """A group is told whole: it has a push to itself where it is longer than others together may be."""
    ledger = connected(a=1)
    ledger.set_policies(1, {G: group(10, a=(prefix("p", MAX_PUSH_TOKENS * 2),)), T: policy(1, 5)})
    [push] = ledger.plan()
    assert push.grants[G].num_tokens == MAX_PUSH_TOKENS * 2
