"""Policy written to Postgres reaches every worker, in order, and comes back as acks."""

import asyncio
from functools import partial
from pathlib import Path

from tenants import selectors
from tenants.contracts import Actor, PolicyAcks
from tenants.services.policy import set_policy
from tenants.services.workers import announce, set_draining
from tests.gateway.controller.conftest import controller, in_thread, set_hard, until, until_stored
from tests.gateway.controller.scripted_worker import ScriptedWorker, scripted_worker

ACTOR = Actor("system", "tests", "tests")

MIB = 1 << 20


async def join(worker: ScriptedWorker, kv_bytes: int = 1 << 30) -> None:
    """Announce a worker."""
    await in_thread(lambda: announce(announcement=worker.announcement(kv_bytes)))


def all_applied(version: int) -> PolicyAcks | None:
    """Return a version's acks once every live worker has applied it."""
    acks = selectors.policy_acks(version)
    return acks if acks and acks.of and acks.applied == acks.of else None


def test_a_new_worker_gets_a_snapshot_and_then_deltas(tenant: str, sockets: Path) -> None:
    """The stream opens with everything; a change brings only what changed, and both are acked in the database."""

    async def story() -> None:
        async with scripted_worker("snap", sockets) as worker, controller():
            await join(worker)
            acks = await until_stored(lambda: all_applied(1))
            assert [ack.worker_id for ack in acks.workers] == ["snap"]
            assert [(push.version, push.snapshot) for push in worker.pushes] == [(1, True)]
            version = await in_thread(lambda: set_hard(tenant, 1, 60 * MIB))
            acks = await until_stored(lambda: all_applied(version))
            assert acks.ms is not None
            assert acks.ms < 60_000
            assert [(push.version, push.snapshot) for push in worker.pushes] == [(1, True), (version, False)]
            assert worker.grants[tenant].kv_hard_bytes == 60 * MIB

    asyncio.run(story())


def test_many_quick_changes_end_in_the_newest(tenant: str, sockets: Path) -> None:
    """Pushes carry rising versions and the last change is what the worker holds."""

    async def story() -> None:
        async with scripted_worker("quick", sockets) as worker, controller():
            await join(worker)
            version = 1
            for step in range(20):
                version = await in_thread(lambda at=version, hard=step: set_hard(tenant, at, (50 + hard) * MIB))
            await until_stored(lambda: all_applied(version))
            marks = [(push.version, push.epoch) for push in worker.pushes]
            assert marks == sorted(set(marks))
            assert worker.grants[tenant].kv_hard_bytes == 69 * MIB

    asyncio.run(story())


def test_a_broken_stream_is_opened_again_with_a_snapshot(tenant: str, sockets: Path) -> None:
    """What was written while the stream was down arrives with the next one."""

    async def story() -> None:
        async with scripted_worker("broken", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            worker.break_stream()
            version = await in_thread(lambda: set_hard(tenant, 1, 20 * MIB))
            await until_stored(lambda: all_applied(version))
            assert worker.num_streams >= 2
            assert worker.pushes[-1].snapshot or worker.pushes[-2].snapshot
            assert worker.grants[tenant].kv_hard_bytes == 20 * MIB

    asyncio.run(story())


def test_workers_share_the_limit_in_proportion(tenant: str, sockets: Path) -> None:
    """Two workers hold a tenant's hard limit together, by the size of their pools."""

    async def story() -> None:
        async with (
            scripted_worker("big", sockets) as big,
            scripted_worker("small", sockets) as small,
            controller(),
        ):
            await join(big, 3 << 30)
            await join(small, 1 << 30)
            await until(lambda: tenant in small.grants and small.grants[tenant].kv_hard_bytes == 25 * MIB)
            await until(lambda: big.grants[tenant].kv_hard_bytes == 75 * MIB)
            assert big.grants[tenant].max_running + small.grants[tenant].max_running == 8

    asyncio.run(story())


def test_a_grant_grows_only_after_the_other_has_acked_less(tenant: str, sockets: Path) -> None:
    """A worker that joins gets nothing while the first has not acked its smaller grant."""

    async def story() -> None:
        async with (
            scripted_worker("first", sockets) as first,
            scripted_worker("second", sockets) as second,
            controller(),
        ):
            await join(first)
            await until_stored(lambda: all_applied(1))
            first.hold_acks = True
            await join(second)
            await until(lambda: first.grants[tenant].kv_hard_bytes == 50 * MIB and second.pushes)
            assert second.grants[tenant].kv_hard_bytes == 0
            first.release_acks()
            await until(lambda: second.grants[tenant].kv_hard_bytes == 50 * MIB)

    asyncio.run(story())


def test_draining_reaches_the_worker(tenant: str, sockets: Path) -> None:
    """A worker that an operator drains is told so, and told when that is over; one that comes back hears it first."""

    async def story() -> None:
        async with scripted_worker("drained", sockets) as worker, controller():
            await join(worker)
            await until(lambda: worker.draining == [False])
            for draining in (True, False, True):
                await in_thread(partial(set_draining, worker_id="drained", draining=draining, actor=ACTOR))
                await until(lambda: worker.draining[-1] is draining)  # noqa: B023
            assert worker.draining == [False, True, False, True]
        async with scripted_worker("drained", sockets) as restarted, controller():
            await join(restarted)
            await until(lambda: restarted.draining == [True])

    asyncio.run(story())


def test_another_worker_at_the_address_is_not_served(tenant: str, sockets: Path) -> None:
    """A worker whose Hello names another id gets no policy that was meant for somebody else."""

    async def story() -> None:
        async with scripted_worker("real", sockets) as worker, controller():
            await in_thread(lambda: announce(announcement=ScriptedWorker("wrong", worker.address).announcement()))
            await until(lambda: worker.num_streams >= 2)
            assert worker.pushes == []

    asyncio.run(story())


def test_a_worker_that_knows_a_later_term_is_served_by_who_holds_the_lock(tenant: str, sockets: Path) -> None:
    """After a restore from a backup workers remember versions and terms from the future; the database wins."""

    async def story() -> None:
        async with scripted_worker("future", sockets) as worker, controller():
            worker.mark = (77, 1 << 63)
            await join(worker)
            await until_stored(lambda: all_applied(1))
            assert worker.grants[tenant].kv_hard_bytes == 100 * MIB
            assert worker.mark > (77, 1 << 63)

    asyncio.run(story())


def test_a_wrong_token_is_tried_again(tenant: str, sockets: Path) -> None:
    """A worker that refuses the token is served as soon as it accepts it."""

    async def story() -> None:
        async with scripted_worker("locked", sockets) as worker, controller():
            worker.token = "another"
            await join(worker)
            await until_stored(lambda: selectors.live_workers())
            worker.token = "worker-token"
            await until_stored(lambda: all_applied(1))

    asyncio.run(story())


def test_workers_get_the_secret_of_an_encrypted_disk(tenant: str, sockets: Path) -> None:
    """And another one, or none, with the version that changes it."""

    async def story() -> None:
        async with scripted_worker("sealed", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            assert worker.grants[tenant].disk_secret == b""
            secrets = []
            for wanted in (True, False, True):
                version = await in_thread(partial(encrypt, tenant, wanted))
                await until_stored(partial(all_applied, version))
                secrets.append(worker.grants[tenant].disk_secret)
            assert [len(secret) for secret in secrets] == [32, 0, 32]
            assert secrets[0] != secrets[2]

    asyncio.run(story())


def encrypt(tenant_id: str, wanted: bool) -> int:
    """Change whether a tenant's disk is encrypted; return the version."""
    policy = selectors.policy(tenant_id)
    assert policy is not None
    changes = {"encrypt_disk": wanted}
    return set_policy(tenant_id=tenant_id, expected_version=policy.version, changes=changes, actor=ACTOR).version
