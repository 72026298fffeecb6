"""Limits that move by themselves: boosts that end on time, grants that follow traffic, pushes that settle."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from django.utils import timezone

from engine.protocol import engine_pb2 as pb
from gateway.controller import boosts, roll
from tenants import selectors
from tenants.contracts import PolicyAcks, ShadowLimits
from tenants.models import AuditEvent, Boost
from tenants.services.boosts import start_boost
from tenants.services.policy import revert_policy, set_policy
from tests.gateway.controller.conftest import SYSTEM, Process, controller, in_thread, set_hard, until, until_stored
from tests.gateway.controller.scripted_worker import ScriptedWorker, scripted_worker
from tests.gateway.controller.test_failover import HOLDERS, rows
from tests.gateway.controller.test_hints import _own_group as own_group
from tests.gateway.controller.test_hints import collect, told
from tests.gateway.controller.test_policy_push import MIB, all_applied, join

__all__ = ["own_group"]


def write(tenant: str, **changes: Any) -> int:
    """Change a tenant's policy as it is and return the version."""
    policy = selectors.policy(tenant)
    assert policy is not None
    return set_policy(tenant_id=tenant, expected_version=policy.version, changes=changes, actor=SYSTEM).version


def boost(tenant: str, seconds: float, **changes: Any) -> str:
    """Boost a tenant's policy as it is, and let it end in so many seconds, fewer than anybody may choose."""
    policy = selectors.policy(tenant)
    assert policy is not None
    made = start_boost(
        tenant_id=tenant,
        expected_version=policy.version,
        changes=changes,
        ends_at=timezone.now() + timedelta(hours=1),
        reason="test",
        actor=SYSTEM,
    )
    ends_at = timezone.now() + timedelta(seconds=seconds)
    Boost.objects.across_tenants().filter(pk=made.id).update(ends_at=ends_at)
    write(tenant, rpm=policy.rpm + 1)  # whoever waits for the old end hears of a change
    return made.id


def ended(boost_id: str) -> Boost | None:
    """Return a boost once it has ended."""
    return Boost.objects.across_tenants().filter(pk=boost_id, ended_at__isnull=False).first()


def settled(version: int) -> PolicyAcks | None:
    """Return a version's acks once a worker has said that it has settled."""
    acks = selectors.policy_acks(version)
    return acks if acks and acks.settled else None


async def report(worker: ScriptedWorker, tenant: str, load: dict[str, tuple[int, int, int]]) -> None:
    """Tell of the load (MiB held, running, queued) on a worker, as often as a real one."""
    while True:
        held, running, queued = load.get(worker.worker_id, (0, 0, 0))
        use = pb.TenantStats(
            tenant=tenant, kv_bytes=held * MIB, kv_peak_bytes=held * MIB, running=running, queued=queued
        )
        stats = pb.Stats(at=time.time(), running=running, queued=queued, core_ready=True, tenants=[use])
        worker.emit(pb.ControlEvent(stats=stats))
        await asyncio.sleep(0.1)


def test_every_field_reaches_the_worker(tenant: str, sockets: Path) -> None:
    """Host and disk ceilings divide like device bytes, trials like the limit they try; taken off, they are gone."""

    async def story() -> None:
        async with scripted_worker("one", sockets) as one, scripted_worker("two", sockets) as two, controller():
            await join(one)
            await join(two)
            await until_stored(lambda: all_applied(1))
            trial = {"kv_hard_bytes": 40 * MIB, "max_running": 2, "max_context": 100}
            version = await in_thread(lambda: write(tenant, host_bytes=10, disk_bytes=6, shadow=trial))
            await until_stored(lambda: all_applied(version))
            for worker in (one, two):
                grant = worker.grants[tenant]
                assert (grant.host_bytes, grant.disk_bytes) == (5, 3)
                assert (grant.shadow.kv_hard_bytes, grant.shadow.max_running) == (20 * MIB, 1)
                assert grant.shadow.max_context_tokens == 100
                assert not grant.shadow.HasField("max_queued")
                assert (grant.fleet_hard_bytes, grant.fleet_max_running) == (100 * MIB, 8)
            version = await in_thread(lambda: write(tenant, shadow=None))
            await until_stored(lambda: all_applied(version))
            assert not one.grants[tenant].HasField("shadow")
            assert (await in_thread(lambda: selectors.policy(tenant))).shadow == ShadowLimits()

    asyncio.run(story())


def test_limits_follow_the_traffic_and_flow_back(tenant: str, sockets: Path) -> None:
    """All traffic on one worker draws nearly all of the limit there; Σ stays within it at every moment."""
    most = 0

    async def watch(*workers: ScriptedWorker) -> None:
        nonlocal most
        while True:
            most = max(most, sum(worker.grants[tenant].kv_hard_bytes for worker in workers if worker.grants))
            await asyncio.sleep(0)

    async def story() -> None:
        load: dict[str, tuple[int, int, int]] = {}
        async with scripted_worker("left", sockets) as left, scripted_worker("right", sockets) as right, controller():
            await join(left)
            await join(right)
            await until_stored(lambda: all_applied(1))
            await until(lambda: left.grants[tenant].kv_hard_bytes == right.grants[tenant].kv_hard_bytes == 50 * MIB)
            tasks = [asyncio.create_task(report(worker, tenant, load)) for worker in (left, right)]
            tasks.append(asyncio.create_task(watch(left, right)))
            load["left"] = (45, 4, 2)
            await until(lambda: left.grants[tenant].kv_hard_bytes >= 90 * MIB)
            assert left.grants[tenant].max_running >= 7
            load |= {"left": (0, 0, 0), "right": (5, 4, 0)}
            await until(lambda: right.grants[tenant].kv_hard_bytes >= 75 * MIB)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert most == 100 * MIB

    asyncio.run(story())


def test_a_dead_workers_share_comes_back_after_its_lease(tenant: str, sockets: Path, monkeypatch: Any) -> None:
    """Until then nobody else gets it, for it may be serving, cut off; afterwards the other has the whole limit."""
    monkeypatch.setattr(roll, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(roll, "FORGET_SECONDS", 6.0)
    monkeypatch.setattr(roll, "TIDY_SECONDS", 0.3)
    monkeypatch.setattr(roll, "SEEN_SECONDS", 0.3)

    async def story() -> None:
        load = {"alive": (20, 4, 4), "dead": (45, 8, 0)}
        async with scripted_worker("alive", sockets) as alive, controller():
            async with scripted_worker("dead", sockets) as dead:
                await join(alive)
                await join(dead)
                await until_stored(lambda: all_applied(1))
                tasks = [asyncio.create_task(report(worker, tenant, load)) for worker in (alive, dead)]
                held = dead.grants[tenant].kv_hard_bytes
                assert held > 0
            assert alive.grants[tenant].kv_hard_bytes <= 100 * MIB - dead.grants[tenant].kv_hard_bytes
            await until(lambda: alive.grants[tenant].kv_hard_bytes == 100 * MIB)
            assert alive.grants[tenant].max_running == 8
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(story())


def test_a_new_leader_keeps_what_demand_has_moved(tenant: str, sockets: Path) -> None:
    """After a failover no grant goes home only to come back."""

    async def story() -> None:
        load = {"busy": (60, 6, 2)}
        async with scripted_worker("busy", sockets) as busy, scripted_worker("quiet", sockets) as quiet, controller():
            await join(busy)
            await join(quiet)
            await until_stored(lambda: all_applied(1))
            tasks = [asyncio.create_task(report(worker, tenant, load)) for worker in (busy, quiet)]
            await until(lambda: busy.grants[tenant].kv_hard_bytes >= 90 * MIB)
            seen = len(busy.pushes)
            await in_thread(lambda: rows(f"SELECT pg_terminate_backend(pid) FROM ({HOLDERS}) AS holder"))
            version = await in_thread(lambda: write(tenant, rpm=5))
            await until_stored(lambda: all_applied(version))
            later = [policy.kv_hard_bytes for push in busy.pushes[seen:] for policy in push.tenants]
            assert later
            assert min(later) >= 85 * MIB
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(story())


def test_a_boost_ends_at_its_time(tenant: str, sockets: Path) -> None:
    """The worker holds the boosted limit until then, and the old one afterwards; nobody waits for the next look."""

    async def story() -> None:
        async with scripted_worker("boosted", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            boost_id = await in_thread(lambda: boost(tenant, 3.0, kv_hard_bytes=200 * MIB))
            row = await until_stored(lambda: ended(boost_id))
            assert 0 <= (row.ended_at - row.ends_at).total_seconds() < boosts.LOOK_SECONDS / 2
            acks = await until_stored(lambda: all_applied(row.ended_version))
            assert worker.grants[tenant].kv_hard_bytes == 100 * MIB
            assert 200 * MIB in [policy.kv_hard_bytes for push in worker.pushes for policy in push.tenants]
            assert acks.tenant_id == tenant

    asyncio.run(story())


def test_boosts_that_came_due_while_nobody_led_end_at_once(tenant: str, sockets: Path) -> None:
    """A controller that starts finds them; each ends once however many start."""

    async def story() -> None:
        boost_id = await in_thread(lambda: boost(tenant, 0.0, max_running=3))
        async with controller(), controller():
            row = await until_stored(lambda: ended(boost_id))
            policy = await in_thread(lambda: selectors.policy(tenant))
            assert (policy.max_running, policy.version) == (8, row.ended_version)
        trail = AuditEvent.objects.for_tenant(tenant).filter(action="boost.ended")
        assert await in_thread(trail.count) == 1

    asyncio.run(story())


def test_a_push_settles_after_it_is_applied(tenant: str, sockets: Path) -> None:
    """What was over and how long it would take come with the ack; `settled` follows, and dashboards hear of both."""

    async def story() -> None:
        hints: list[dict[str, Any]] = []
        subscribed = asyncio.Event()
        listening = asyncio.create_task(collect(hints, subscribed))
        await subscribed.wait()
        async with scripted_worker("settling", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            worker.hold_acks = True
            version = await in_thread(lambda: set_hard(tenant, 1, 10 * MIB))
            await until(lambda: worker.mark[0] == version)
            mark = {"version": version, "epoch": worker.mark[1]}
            worker.emit(
                pb.ControlEvent(applied=pb.Applied(**mark, at=time.time(), over_bytes=5 * MIB, settle_seconds=0.5))
            )
            acks = await until_stored(lambda: all_applied(version))
            [ack] = acks.workers
            assert (ack.over_bytes, ack.settle_seconds, ack.settled_at, acks.settled) == (5 * MIB, 0.5, None, 0)
            wrong = pb.Settled(version=version, epoch=worker.mark[1] + 5, at=time.time())
            worker.emit(pb.ControlEvent(settled=wrong))  # of a push that was never sent
            worker.emit(pb.ControlEvent(settled=pb.Settled(**mark, at=time.time())))
            acks = await until_stored(lambda: settled(version))
            assert acks.workers[0].settled_at >= acks.workers[0].applied_at
            await until(lambda: any(hint["settled"] for hint in told(hints, version)))
            assert [hint["settled"] for hint in told(hints, version)] == [0, 0, 1]
            assert told(hints, version)[-1]["settled_ms"] > 0
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    asyncio.run(story())


def test_a_worker_that_never_settles_is_shown_as_such(tenant: str, sockets: Path) -> None:
    """Applied everywhere is not settled everywhere, and the next versions are told all the same."""

    async def story() -> None:
        async with scripted_worker("silent", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            for rpm in range(1, 40):
                version = await in_thread(lambda rpm=rpm: write(tenant, rpm=rpm))
            acks = await until_stored(lambda: all_applied(version))
            assert (acks.applied, acks.settled) == (1, 0)

    asyncio.run(story())


def test_a_newer_version_never_loses_whoever_is_killed(
    tenant: str, sockets: Path, start_process: Callable[..., Process]
) -> None:
    """Controllers die by kill -9 at random points under writes, boosts and reverts: no worker ever goes back."""
    random = Random(11)

    async def story() -> None:
        async with scripted_worker("one", sockets) as one, scripted_worker("two", sockets) as two:
            for worker in (one, two):
                await join(worker)
            process = await asyncio.to_thread(start_process)
            await until_stored(lambda: all_applied(1))
            version = 1
            for turn in range(4):
                for _ in range(random.randint(3, 8)):
                    version = await in_thread(lambda: write(tenant, kv_hard_bytes=random.randint(1, 90) * MIB))
                    if random.random() < 0.3:
                        random.choice((one, two)).break_stream()
                    await asyncio.sleep(random.uniform(0, 0.05))
                await asyncio.to_thread(process.kill)
                hard = 91 + turn
                version = await in_thread(lambda hard=hard: write(tenant, kv_hard_bytes=hard * MIB))
                process = await asyncio.to_thread(start_process)
                await until_stored(lambda at=version: all_applied(at))
                await until(lambda hard=hard: sum(w.grants[tenant].kv_hard_bytes for w in (one, two)) == hard * MIB)
            back = await in_thread(
                lambda: revert_policy(tenant_id=tenant, version=1, expected_version=version, actor=SYSTEM)
            )
            await until_stored(lambda: all_applied(back.version))
            await until(lambda: sum(worker.grants[tenant].kv_hard_bytes for worker in (one, two)) == 100 * MIB)
            for worker in (one, two):
                marks = [(push.version, push.epoch) for push in worker.pushes]
                assert marks == sorted(set(marks))

    asyncio.run(story())
