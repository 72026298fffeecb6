"""One controller is active; when it goes, or loses its connection to Postgres, control goes on and nothing is lost."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from django.db import connection

from gateway.controller.leadership import LOCK_ID
from gateway.controller.ledger import TERM_BITS
from tenants import selectors
from tenants.services.share_groups import update_share_group
from tests.gateway.controller.conftest import SYSTEM, Process, controller, in_thread, set_hard, until, until_stored
from tests.gateway.controller.scripted_worker import scripted_worker
from tests.gateway.controller.test_policy_push import all_applied, join
from tests.gateway.controller.test_sharing import describe, make_group, prefixes, register
from tests.gateway.controller.test_usage_delivery import stored


def rows(query: str) -> list[tuple[Any, ...]]:
    """Run a query."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


HOLDERS = (
    f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    f" AND ((classid::bigint << 32) | objid::bigint) = {LOCK_ID}"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def set_group_hard(hard: int) -> None:
    """Write the limits of the share group `house`."""
    group = selectors.share_group("house")
    assert group is not None
    changes = {"kv_hard_bytes": hard, "kv_soft_bytes": hard // 2}
    update_share_group(name="house", expected_version=group.version, changes=changes, actor=SYSTEM, overcommit=True)


def test_a_second_controller_takes_over(tenant: str, sockets: Path, start_process: Callable[..., Process]) -> None:
    """After kill -9 of the active controller the one that stands by pushes the next version within seconds."""

    async def story() -> None:
        async with scripted_worker("orphan", sockets) as worker:
            await join(worker)
            first = await asyncio.to_thread(start_process)
            await until_stored(lambda: all_applied(1))
            second = await asyncio.to_thread(start_process)
            await until(lambda: "controller_stands_by" in second.log())
            first_epoch = worker.mark[1]
            await asyncio.to_thread(first.kill)
            version = await in_thread(lambda: set_hard(tenant, 1, 33 << 20))
            await until_stored(lambda: all_applied(version))
            assert worker.grants[tenant].kv_hard_bytes == 33 << 20
            assert worker.mark[1] >> TERM_BITS > first_epoch >> TERM_BITS
            assert len(await in_thread(lambda: rows(HOLDERS))) == 1

    asyncio.run(story())


def test_sigterm_ends_it_cleanly(tenant: str, sockets: Path, start_process: Callable[..., Process]) -> None:
    """SIGTERM closes the streams, releases the lock and exits with 0."""

    async def story() -> None:
        async with scripted_worker("left", sockets) as worker:
            await join(worker)
            process = await asyncio.to_thread(start_process)
            await until(lambda: worker.pushes)
            process.popen.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(process.popen.wait, 60)
            assert status == 0, process.log()
            await until(lambda: not worker.connected)
            assert await in_thread(lambda: rows(HOLDERS)) == []
            assert "Traceback" not in process.log()

    asyncio.run(story())


def test_sigterm_ends_one_that_stands_by(tenant: str, sockets: Path, start_process: Callable[..., Process]) -> None:
    """A controller that waits for the lock ends as cleanly, and the active one does not notice."""

    async def story() -> None:
        async with scripted_worker("unmoved", sockets) as worker, controller():
            await join(worker)
            await until(lambda: worker.pushes)
            process = await asyncio.to_thread(start_process)
            await until(lambda: "controller_stands_by" in process.log())
            process.popen.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.popen.wait, 60) == 0, process.log()
            assert worker.num_streams == 1

    asyncio.run(story())


def test_a_terminated_lock_connection_costs_nothing(tenant: str, sockets: Path) -> None:
    """The leader steps down at once, is elected again, and no policy or usage is lost or doubled."""

    async def story() -> None:
        async with scripted_worker("steady", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            version, expected = 1, []
            for turn in range(3):
                streams = worker.num_streams
                worker.use(2 * turn + 1, f"r-{turn}-before", tenant)
                await in_thread(lambda: rows(f"SELECT pg_terminate_backend(pid) FROM ({HOLDERS}) AS holder"))
                worker.use(2 * turn + 2, f"r-{turn}-after", tenant)
                version = await in_thread(lambda at=version, hard=turn: set_hard(tenant, at, (40 + hard) << 20))
                await until_stored(lambda at=version: all_applied(at))
                await until(lambda: not worker.journal)
                assert worker.num_streams > streams
                expected += [(f"r-{turn}-after", 5), (f"r-{turn}-before", 5)]
            assert await in_thread(stored) == expected
            assert worker.grants[tenant].kv_hard_bytes == 42 << 20

    asyncio.run(story())


def test_all_connections_terminated_at_once_costs_nothing(tenant: str, sockets: Path) -> None:
    """The connections that the domain functions use are replaced as well."""
    [(own,)] = rows("SELECT pg_backend_pid()")

    async def story() -> None:
        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = current_database() AND pid NOT IN (pg_backend_pid(), {own})"
        )
        async with scripted_worker("lonely", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            worker.use(1, "r-1", tenant)
            await in_thread(lambda: rows(others))
            worker.use(2, "r-2", tenant)
            version = await in_thread(lambda: set_hard(tenant, 1, 44 << 20))
            await until_stored(lambda: all_applied(version))
            await until(lambda: not worker.journal)
            assert await in_thread(stored) == [("r-1", 5), ("r-2", 5)]

    asyncio.run(story())


def test_postgres_away_and_back(tenant: str, sockets: Path, without_postgres: Callable[[], Any]) -> None:
    """While nobody can connect to Postgres workers keep what they hold; afterwards what they metered arrives, once."""

    async def story() -> None:
        async with scripted_worker("outage", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            with without_postgres():
                await until(lambda: not worker.connected)
                for number in range(1, 6):
                    worker.use(number, f"r-{number}", tenant)
                held = worker.grants[tenant].kv_hard_bytes
            await until(lambda: not worker.journal)
            assert held == 100 << 20
            assert await in_thread(stored) == [(f"r-{number}", 5) for number in range(1, 6)]

    asyncio.run(story())


def test_any_faults_in_any_order_lose_and_double_nothing(tenant: str, sockets: Path) -> None:
    """Under 60 random breaks, writes and requests on three workers all usage counts once, and what was last holds."""
    random = Random(7)  # drawn once, so that a failure can be run again
    [(own,)] = rows("SELECT pg_backend_pid()")
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE datname = current_database() AND pid NOT IN (pg_backend_pid(), {own})"
    )

    async def story() -> None:
        async with AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(scripted_worker(f"any-{n}", sockets)) for n in range(3)]
            for worker in workers:
                describe(worker)
                await join(worker)
            await stack.enter_async_context(controller())
            await in_thread(make_group)
            version, sent = 1, set()
            for number in range(1, 61):
                worker = random.choice(workers)
                match random.choice(
                    ("use", "use", "use", "write", "write", "group", "prefix", "break", "break", "cut")
                ):
                    case "use":
                        worker.use(number, f"r-{number}", tenant)
                        sent.add((f"r-{number}", 5))
                    case "write":
                        hard = random.randint(1, 100) << 20
                        version = await in_thread(lambda at=version, hard=hard: set_hard(tenant, at, hard))
                    case "group":
                        hard = random.randint(1, 100) << 20
                        await in_thread(lambda hard=hard: set_group_hard(hard))
                    case "prefix":
                        await in_thread(lambda number=number: register(f"p{number}"))
                    case "break":
                        worker.break_stream()
                    case "cut":
                        await in_thread(lambda: rows(others))
                await asyncio.sleep(random.uniform(0, 0.05))
            hard = 90 << 20
            await in_thread(lambda: set_group_hard(hard))
            version = await in_thread(lambda: set_hard(tenant, selectors.policy(tenant).version, hard))
            await until_stored(lambda: all_applied(version))
            await until(lambda: not any(worker.journal for worker in workers))
            await until(lambda: sum(worker.grants[tenant].kv_hard_bytes for worker in workers) == hard)
            await until(lambda: sum(worker.groups["house"].kv_hard_bytes for worker in workers) == hard)
            wanted = sorted(prefix.id for prefix in await in_thread(lambda: selectors.shared_prefixes("house")))
            assert wanted
            await until(lambda: all(sorted(prefixes(worker)) == wanted for worker in workers))
            assert set(await in_thread(stored)) == sent
            for worker in workers:
                marks = [(push.version, push.epoch) for push in worker.pushes]
                assert marks == sorted(set(marks))

    asyncio.run(story())
