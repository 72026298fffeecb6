"""Grants move between workers without ever summing to more than the limit, and the newest policy always wins."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.controller.errors import Superseded
from gateway.controller.grants import Grant, divide
from gateway.controller.ledger import MAX_UNACKED, Ledger, Push
from tenants.contracts import PolicyView

TENANTS = ("minnow", "whale")
WORKERS = ("w0", "w1", "w2")


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


class Worker:
    """Applies pushes as the protocol says: in the order of (version, epoch), older ones ignored."""

    def __init__(self) -> None:
        self.mark = (0, 0)
        self.grants: dict[str, Grant] = {}
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
            for tenant in push.removed:
                self.grants.pop(tenant, None)
            self.mark = push.mark
        self.acks.append(self.mark)


class Fleet(RuleBasedStateMachine):
    """Drive a ledger and its workers through lost streams, late acks, joins and failovers."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = {name: Worker() for name in WORKERS}
        self.members: dict[str, int] = {}
        self.policies: dict[str, PolicyView] = {}
        self.highest: dict[str, PolicyView] = {}
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

    @rule(tenant=st.sampled_from(TENANTS), amount=st.integers(0, 1000))
    def write_policy(self, tenant: str, amount: int) -> None:
        """An operator writes a policy."""
        self.version += 1
        new = policy(self.version, amount)
        self.policies[tenant] = new
        self.highest.setdefault(tenant, new)
        old = self.highest[tenant]
        self.highest[tenant] = PolicyView(
            **{
                name: max(getattr(old, name), getattr(new, name)) if name != "priority" else new.priority
                for name in PolicyView.__struct_fields__
            }
        )
        self.ledger.set_policies(self.version, {tenant: new})
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
        for tenant, highest in self.highest.items():
            held = [worker.grants[tenant] for worker in self.workers.values() if tenant in worker.grants]
            assert sum(grant.kv_hard_bytes for grant in held) <= highest.kv_hard_bytes
            assert sum(grant.kv_soft_bytes for grant in held) <= highest.kv_soft_bytes
            assert sum(grant.max_running for grant in held) <= highest.max_running
            assert sum(grant.max_queued for grant in held) <= highest.max_queued

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
    ledger.set_policies(1, {"t": policy(1, 100)})
    [first] = ledger.plan()
    ledger.acknowledge("a", first.mark)
    ledger.set_workers({"a": 1, "b": 1})
    ledger.connect("b", (0, 0), {})
    shrink, wait = ledger.plan()
    assert (shrink.grants["t"].kv_hard_bytes, wait.grants["t"].kv_hard_bytes) == (50, 0)
    ledger.acknowledge("b", wait.mark)
    assert ledger.plan() == []
    ledger.acknowledge("a", shrink.mark)
    [grow] = ledger.plan()
    assert (grow.worker, grow.grants["t"].kv_hard_bytes, grow.version) == ("b", 50, 1)
    assert grow.mark > wait.mark


def test_every_version_reaches_every_worker() -> None:
    """A worker whose grants a version does not change is told the version all the same: requests wait for it."""
    ledger = connected(a=1, b=0)
    ledger.set_policies(1, {"t": policy(1, 100)})
    ledger.plan()
    ledger.set_policies(2, {"t": policy(2, 90)})
    assert {(push.worker, push.version) for push in ledger.plan()} == {("a", 2), ("b", 2)}


def test_an_older_version_loses() -> None:
    """Policies read before a newer version was known change nothing."""
    ledger = connected(a=1)
    ledger.set_policies(5, {"t": policy(5, 50)})
    ledger.set_policies(4, {"t": policy(4, 100)})
    [push] = ledger.plan()
    assert (push.version, push.grants["t"].kv_hard_bytes) == (5, 50)


def test_a_removed_tenant_is_named_in_a_delta() -> None:
    """A worker is told once to forget a tenant that is gone."""
    ledger = connected(a=1)
    ledger.set_policies(1, {"t": policy(1, 100), "u": policy(1, 10)})
    ledger.plan()
    ledger.set_policies(2, {}, ["t"])
    [push] = ledger.plan()
    assert (push.snapshot, push.removed, dict(push.grants)) == (False, ("t",), {})
    assert ledger.plan() == []


def test_a_slow_worker_gets_merged_pushes() -> None:
    """A worker that does not ack stops being pushed to; its first ack brings one push with the newest of all."""
    ledger = connected(a=1)
    marks = []
    for version in range(1, MAX_UNACKED + 5):
        ledger.set_policies(version, {"t": policy(version, version)})
        marks += [push.mark for push in ledger.plan()]
    assert len(marks) == MAX_UNACKED
    assert ledger.acknowledge("a", marks[0]) == 1
    [push] = ledger.plan()
    assert (push.version, push.grants["t"].kv_hard_bytes) == (MAX_UNACKED + 4, MAX_UNACKED + 4)


def test_a_restored_database_still_wins() -> None:
    """Workers that have applied a higher version than the database knows take up what the database says."""
    ledger = Ledger(term=1)
    ledger.set_workers({"a": 1})
    ledger.set_policies(3, {"t": policy(3, 100)})
    ledger.connect("a", (9, 77 << 24), {})
    [push] = ledger.plan()
    assert push.mark[0] == 9
    assert push.mark > (9, 77 << 24)
    assert ledger.acknowledge("a", push.mark) == 3


def test_an_ack_of_a_foreign_push_is_noticed() -> None:
    """A worker that has applied what this controller never sent has another controller."""
    ledger = connected(a=1)
    ledger.set_policies(1, {"t": policy(1, 100)})
    ledger.plan()
    with pytest.raises(Superseded, match="a has applied"):
        ledger.acknowledge("a", (1, 5 << 24))


def test_a_forgotten_worker_frees_its_grants() -> None:
    """Once a worker is forgotten the rest get its share at once."""
    ledger = connected(a=1, b=1)
    ledger.set_policies(1, {"t": policy(1, 100)})
    for push in ledger.plan():
        ledger.acknowledge(push.worker, push.mark)
    ledger.disconnect("b")
    assert ledger.plan() == []
    ledger.set_workers({"a": 1})
    [push] = ledger.plan()
    assert push.grants["t"].kv_hard_bytes == 100
