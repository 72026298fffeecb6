"""Grants follow what tenants use and what waits, calmly, and their sum stays within the limits whatever is lost."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gateway.controller.demand import NEAR_PAUSE, SHORT_PAUSE, Demand, Fleet
from gateway.controller.grants import Shares, by_pools, divide_policy
from gateway.controller.holders import NOTHING, Holder, TenantGrant, limits, tenant
from gateway.controller.ledger import Ledger
from gateway.controller.notes import Notes
from tenants.contracts import PolicyView
from tenants.reports import TenantUse
from tenants.rules.policy import DEFAULT, LOW_WATERMARK
from tenants.services.grants import Parts
from tests.gateway.controller.test_ledger import WORKERS
from tests.gateway.controller.test_ledger import Fleet as LedgerMachine

MIB = 1 << 20
POOLS = {"a": 1024 * MIB, "b": 1024 * MIB}
T = "t"


def policy(**changes: Any) -> PolicyView:
    """Return a policy of 100 MiB and 32 places."""
    fields = {"version": 1, "kv_hard_bytes": 100 * MIB, "max_running": 32} | changes
    return msgspec.structs.replace(DEFAULT, **fields)


def use(held: int = 0, *, running: int = 0, queued: int = 0, tenant_id: str = T, **more: Any) -> TenantUse:
    """Return a tenant's use of a worker; bytes in MiB."""
    return TenantUse(
        tenant_id=tenant_id,
        kv_bytes=held * MIB,
        kv_peak_bytes=held * MIB,
        running=running,
        queued=queued,
        output_tokens_per_second=0.0,
        **more,
    )


class Watch:
    """A demand with a clock and the shares that it has given out."""

    def __init__(self, pools: Mapping[str, int] = POOLS, **policies: PolicyView) -> None:
        self.demand = Demand()
        self.fleet = Fleet(policies=policies or {T: policy()}, reserved=0, pools=pools)
        self.now = 1000.0
        self.shares: dict[str, Shares] = {}
        self.moves = 0

    def see(self, seconds: float = 0.25, **uses: TenantUse | list[TenantUse]) -> None:
        """Let workers tell these uses, four times a second, for so long."""
        for _ in range(max(1, round(seconds * 4))):
            self.now += 0.25
            for worker, told in uses.items():
                self.demand.observe(worker, told if isinstance(told, list) else [told], self.now)
            moved = self.demand.moves(self.fleet, self.now)
            self.moves += len(moved)
            self.shares |= moved

    def grants(self, tenant_id: str = T) -> dict[str, TenantGrant]:
        """Return how the tenant's limits are divided now."""
        shares = self.shares.get(tenant_id, by_pools(self.fleet.pools))
        grants = divide_policy(self.fleet.policies[tenant_id], shares)
        return {worker: grant for worker, grant in grants.items() if isinstance(grant, TenantGrant)}


def test_traffic_on_one_worker_draws_nearly_all_of_the_limit_there() -> None:
    """Within a few seconds, of bytes and of places; the quiet worker keeps enough to begin with."""
    watch = Watch()
    watch.see(3, a=use(10, running=2), b=use(0))
    grants = watch.grants()
    assert grants["a"].kv_hard_bytes >= 90 * MIB
    assert grants["b"].kv_hard_bytes >= 5 * MIB
    assert grants["a"].max_running >= 28
    assert grants["b"].max_running >= 1
    assert sum(grant.kv_hard_bytes for grant in grants.values()) == 100 * MIB
    assert sum(grant.max_running for grant in grants.values()) == 32


def test_it_flows_back() -> None:
    """Traffic that moves over takes the limit with it within a few seconds."""
    watch = Watch()
    watch.see(4, a=use(90, running=8), b=use(0))
    watch.see(6, a=use(0), b=use(5, running=4, queued=4))
    assert watch.grants()["b"].kv_hard_bytes >= 88 * MIB
    assert watch.grants()["b"].max_running >= 28


def test_equal_traffic_is_divided_equally() -> None:
    """And unequal traffic by what each worker holds."""
    watch = Watch()
    watch.see(10, a=use(30, running=3), b=use(30, running=3))
    assert watch.moves == 0
    watch.see(20, a=use(60, running=6), b=use(20, running=2))
    grants = watch.grants()
    assert 65 * MIB < grants["a"].kv_hard_bytes < 78 * MIB


@given(st.lists(st.tuples(st.integers(26, 34), st.integers(26, 34)), min_size=40, max_size=40))
def test_noise_moves_nothing(noise: list[tuple[int, int]]) -> None:
    """Use that wavers by an eighth leaves the grants where they are."""
    watch = Watch()
    for one, other in noise:
        watch.see(a=use(one, running=3), b=use(other, running=3))
    assert watch.moves == 0


def test_traffic_that_jumps_to_and_fro_does_not_make_grants_flap() -> None:
    """Between two moves of a tenant lies a pause, longer where nothing waits."""
    watch = Watch()
    for _ in range(20):
        watch.see(0.5, a=use(50, running=5), b=use(0))
        watch.see(0.5, a=use(0), b=use(50, running=5))
    assert watch.moves <= 20 / SHORT_PAUSE


def test_a_request_that_fits_no_grant_draws_what_it_needs() -> None:
    """It waits on a worker where nothing runs: the grant there doubles until it starts, in a few seconds."""
    watch = Watch()
    watch.see(4, a=use(40, running=40), b=use(0))
    assert watch.grants()["b"].kv_hard_bytes < 10 * MIB
    watch.see(4, a=use(40, running=40), b=use(0, queued=1))
    assert watch.grants()["b"].kv_hard_bytes >= 50 * MIB


def test_what_waits_long_weighs_more() -> None:
    """A worker whose queue is old is served before one whose queue is young."""
    watch = Watch()
    watch.see(
        8,
        a=use(50, running=5, queued=2),
        b=use(10, running=1, queued=2, oldest_wait_seconds=20.0),
    )
    assert watch.grants()["b"].kv_hard_bytes > 60 * MIB


def test_an_idle_tenant_keeps_its_cache_where_it_is() -> None:
    """What is cached draws while nothing runs; with nothing anywhere the limit goes by the pools."""
    watch = Watch()
    watch.see(4, a=use(80, running=5), b=use(0))
    watch.see(30, a=use(80, kv_cached_bytes=80 * MIB), b=use(0))
    assert watch.grants()["a"].kv_hard_bytes >= 80 * MIB
    watch.see(30, a=use(0), b=use(0))
    assert watch.grants()["a"].kv_hard_bytes == 50 * MIB


def test_a_guarantee_follows_where_there_is_room() -> None:
    """All of it to the worker with the traffic, as long as all guarantees there fit under its low watermark."""
    watch = Watch(t=policy(kv_soft_bytes=80 * MIB))
    watch.see(4, a=use(80, running=5), b=use(0))
    assert watch.grants()["a"].kv_soft_bytes >= 70 * MIB
    full = int(2048 * MIB * LOW_WATERMARK) - 80 * MIB
    crowded = Watch(t=policy(kv_soft_bytes=80 * MIB), u=policy(kv_soft_bytes=full, kv_hard_bytes=full))
    crowded.see(4, a=use(80, running=5), b=use(0))
    assert crowded.grants()["a"].kv_hard_bytes >= 90 * MIB
    assert crowded.grants()["a"].kv_soft_bytes == 40 * MIB


def test_a_guarantee_goes_home_when_the_room_is_needed() -> None:
    """Another tenant is guaranteed the rest of the fleet: what has followed demand makes way at once."""
    watch = Watch(t=policy(kv_soft_bytes=80 * MIB))
    watch.see(4, a=use(80, running=5), b=use(0))
    full = int(2048 * MIB * LOW_WATERMARK) - 80 * MIB
    policies = {**watch.fleet.policies, "u": policy(kv_soft_bytes=full, kv_hard_bytes=full)}
    watch.fleet = Fleet(policies=policies, reserved=0, pools=POOLS)
    watch.see(a=use(80, running=5), b=use(0))
    assert watch.grants()["a"].kv_soft_bytes == 40 * MIB
    assert watch.grants()["a"].kv_hard_bytes >= 90 * MIB


AMOUNTS = st.integers(0, 600)


@settings(max_examples=60, deadline=None)
@given(
    guarantees=st.lists(AMOUNTS, min_size=1, max_size=5),
    pools=st.lists(st.integers(50, 400), min_size=2, max_size=3),
    traffic=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), AMOUNTS), max_size=30),
)
def test_guarantees_on_a_worker_never_pass_its_watermark_by_following(
    guarantees: list[int], pools: list[int], traffic: list[tuple[int, int, int]]
) -> None:
    """However traffic moves, a worker is promised no more than it can keep, or than its part by the pools."""
    sizes = {f"w{number}": size * MIB for number, size in enumerate(pools)}
    policies = {
        f"t{number}": policy(kv_soft_bytes=soft * MIB, kv_hard_bytes=600 * MIB)
        for number, soft in enumerate(guarantees)
    }
    watch = Watch(pools=sizes, **policies)
    for who, where, held in traffic:
        name, worker = f"t{who % len(guarantees)}", f"w{where % len(pools)}"
        watch.see(2.5, **{worker: use(held, running=1, tenant_id=name)})
        for one, size in sizes.items():
            promised = sum(watch.grants(tenant_id)[one].kv_soft_bytes for tenant_id in policies)
            home = sum(guarantees) * MIB * size / sum(sizes.values())
            assert promised <= max(size * LOW_WATERMARK, home) + 16 * len(guarantees) * MIB / 1024


def test_a_lost_worker_draws_no_more() -> None:
    """What waited there when its stream broke does not pull the limit to where nobody can use it."""
    watch = Watch()
    watch.see(1, a=use(20, running=2), b=use(0, queued=3))
    watch.demand.lose_sight("b")
    watch.see(6, a=use(60, running=6, queued=6))
    assert watch.grants()["a"].kv_hard_bytes > 60 * MIB


def test_workers_that_come_and_go_start_from_what_is_needed() -> None:
    """A new set of workers is divided at once; a tenant on one worker has all of its limit."""
    watch = Watch()
    watch.see(4, a=use(50, running=5), b=use(0))
    watch.fleet = Fleet(policies=watch.fleet.policies, reserved=0, pools=POOLS | {"c": 1024 * MIB})
    watch.see(a=use(50, running=5), b=use(0), c=use(0))
    assert watch.grants().keys() == {"a", "b", "c"}
    assert watch.grants()["a"].kv_hard_bytes >= 85 * MIB
    watch.fleet = Fleet(policies=watch.fleet.policies, reserved=0, pools={"c": 1024 * MIB})
    watch.see(c=use(1, running=1))
    assert divide_policy(policy(), by_pools({"c": 1}))["c"].kv_hard_bytes == 100 * MIB


def test_a_new_leader_goes_on_from_what_workers_hold() -> None:
    """It moves nothing that need not move, and then follows demand itself."""
    first = Watch()
    first.see(4, a=use(80, running=5), b=use(0))
    held = {T: {worker: grant.amounts for worker, grant in first.grants().items()}}
    second = Watch()
    second.shares |= second.demand.adopt(held, second.fleet)
    assert second.grants()["a"].kv_hard_bytes == pytest.approx(first.grants()["a"].kv_hard_bytes, abs=1024)
    second.see(NEAR_PAUSE, a=use(80, running=5), b=use(0))
    assert second.moves == 0
    even = Watch()
    assert even.demand.adopt({T: {w: g.amounts for w, g in even.grants().items()}}, even.fleet) == {}


def test_a_new_leader_that_hears_of_use_first() -> None:
    """Statistics may come before it knows what workers hold, and of tenants to whom none has granted anything."""
    watch = Watch()
    watch.demand.observe("a", [use(50, running=5)], watch.now)
    assert watch.demand.adopt({T: dict.fromkeys(POOLS, NOTHING)}, watch.fleet) == {}
    watch.see(4, a=use(50, running=5), b=use(0))
    assert watch.grants()["a"].kv_hard_bytes >= 85 * MIB


USES = st.lists(
    st.tuples(st.sampled_from(WORKERS), st.sampled_from(["minnow", "whale"]), st.integers(0, 500)), max_size=4
)


class DemandMachine(LedgerMachine):
    """The ledger's machine, with limits that follow a random demand, and leaders that do not meet everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.demand = Demand()
        self.notes = Notes({})
        self.stored: dict[str, Parts] = {}  # what a successor reads
        self.now = 0.0

    def _fleet(self) -> Fleet:
        ledger = self.ledger
        return Fleet(policies=ledger.tenants, reserved=ledger.group_guarantees, pools=ledger.pools)

    @rule(uses=USES, queued=st.integers(0, 3), seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0, 11.0]))
    def follow(self, uses: list[tuple[str, str, int]], queued: int, seconds: float) -> None:
        """Time passes, workers tell their use, and grants move."""
        self.now += seconds
        self._observe(uses, queued)
        self._move(self.demand.moves(self._fleet(), self.now))
        self._pump()

    def _observe(self, uses: list[tuple[str, str, int]], queued: int = 0) -> None:
        for worker, name, held in uses:
            told = msgspec.structs.replace(use(tenant_id=name, running=1, queued=queued), kv_bytes=held)
            self.demand.observe(worker, [told], self.now)

    def _move(self, moves: Mapping[str, Shares]) -> None:
        for name, shares in moves.items():
            is_settled = self.ledger.is_settled(tenant(name))
            self.stored[name] = self.notes.most(name, shares, self.ledger.pools, is_settled=is_settled)
            self.notes.move(name, shares, self.stored[name])
        self.ledger.set_shares({tenant(name): shares for name, shares in moves.items()})

    @precondition(lambda self: all(self.workers[name].connected for name in self.members))
    @rule(name=st.sampled_from(WORKERS), pool=st.integers(0, 100))
    def join(self, name: str, pool: int) -> None:
        """A worker joins, and the others make room. What a leader that misses both may assume, decision 5 tells."""
        super().join(name, pool)
        self._settle()

    @rule(uses=USES)
    def fail_over(self, uses: list[tuple[str, str, int]]) -> None:
        """Another controller takes over, meets all workers, and goes on from what they hold."""
        self.demand = Demand()
        super().fail_over()
        self._observe(uses)
        self._adopt()
        self._pump()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), uses=USES)
    def fail_over_unmet(self, data: st.DataObject, uses: list[tuple[str, str, int]]) -> None:
        """Another controller takes over and cannot reach everybody."""
        self.term += 1
        self.ledger, self.demand = Ledger(term=self.term), Demand()
        self.ledger.set_policies(self.version, self.policies)
        self.ledger.set_workers(self.members)
        self.ledger.note({tenant(name): parts for name, parts in self.stored.items()})
        met = data.draw(st.lists(st.sampled_from(sorted(self.members)), unique=True))
        for name in self.members:
            if name in met:
                self._connect(name)
            else:
                self.workers[name].connected = False
                self.workers[name].inbox.clear()
                self.workers[name].acks.clear()
        self._observe(uses)
        self._adopt()
        self._pump()

    def _adopt(self) -> None:
        held = {name: self.ledger.held_by_all(tenant(name)) for name in self.ledger.tenants}
        self.notes = Notes(self.stored)
        self._move(self.demand.adopt(held, self._fleet()))

    @precondition(lambda self: any(not self.workers[name].connected for name in self.members))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """A worker that is away is dead, and its lease is over."""
        away = sorted(name for name in self.members if not self.workers[name].connected)
        name = data.draw(st.sampled_from(away))
        self.workers[name] = type(self.workers[name])()
        del self.members[name]
        self.ledger.set_workers(self.members)
        self._pump()

    def teardown(self) -> None:
        """Once all messages have arrived all of each limit is granted, however it is divided."""
        for name in self.members:
            if not self.workers[name].connected:
                self._connect(name)
        self._pump()
        self._settle()
        for holder, known in self.policies.items():
            self._check_whole(holder, limits(known))

    def _settle(self) -> None:
        """Let all messages arrive."""
        while any(worker.inbox or worker.acks for worker in self.workers.values()):
            for name, worker in self.workers.items():
                while worker.inbox:
                    worker.apply()
                while worker.acks:
                    self.ledger.acknowledge(name, worker.acks.popleft())
            self._pump()

    def _check_whole(self, holder: Holder, whole: tuple[int, ...]) -> None:
        held = [self.workers[name].grants[holder].amounts for name in self.members]
        for number, amounts in enumerate(zip(*held, strict=True)):
            if number != 0:  # a guarantee is cut where the ceiling went elsewhere
                assert sum(amounts) == whole[number]


TestDemandMachine = DemandMachine.TestCase
TestDemandMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
