"""Usage records arrive in Postgres exactly once, whatever breaks on the way."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

from django.db import connection

from engine.protocol import engine_pb2 as pb
from tenants.models import UsageRecord
from tenants.services.usage import NOBODY
from tests.gateway.controller.conftest import Process, controller, in_thread, until, until_stored
from tests.gateway.controller.scripted_worker import scripted_worker
from tests.gateway.controller.test_policy_push import join

DIES_BEFORE_THE_ACK = """
import os, signal, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"
sys.path.insert(0, ".")
import django; django.setup()
from gateway.controller.link import WorkerLink
WorkerLink._ack_usage = lambda self, up_to: os.kill(os.getpid(), signal.SIGKILL)
execute_from_command_line(["manage.py", "controller"])
"""


def stored() -> list[tuple[str, int]]:
    """Return (request id, completion tokens) of all records."""
    records = UsageRecord.objects.across_tenants().order_by("request_id")
    return list(records.values_list("request_id", "completion_tokens"))


def test_a_record_is_acked_after_it_is_stored(tenant: str, sockets: Path) -> None:
    """The worker may forget a record only when the ledger has it."""

    async def story() -> None:
        async with scripted_worker("meter", sockets) as worker, controller():
            await join(worker)
            await until(lambda: worker.connected)
            worker.use(4, "r-4", tenant, completion_tokens=9)
            await until(lambda: worker.usage_acks == [4])
            assert await in_thread(stored) == [("r-4", 9)]
            assert worker.journal == {}

    asyncio.run(story())


def test_a_record_that_comes_twice_counts_once(tenant: str, sockets: Path) -> None:
    """A second delivery, on the same stream or on another, changes nothing and is acked."""

    async def story() -> None:
        async with scripted_worker("twice", sockets) as worker, controller():
            await join(worker)
            await until(lambda: worker.connected)
            worker.use(1, "r-1", tenant, completion_tokens=9)
            await until(lambda: worker.usage_acks == [1])
            worker.use(2, "r-1", tenant, completion_tokens=9)
            await until(lambda: worker.usage_acks == [1, 2])
            worker.break_stream()
            worker.use(3, "r-1", tenant, completion_tokens=9)
            await until(lambda: worker.usage_acks[-1] == 3)
            assert await in_thread(stored) == [("r-1", 9)]

    asyncio.run(story())


def test_a_kill_between_commit_and_ack_neither_loses_nor_doubles(
    tenant: str, sockets: Path, start_process: Callable[..., Process]
) -> None:
    """A controller killed after the commit leaves the record unacked; the next one is given it again and acks it."""

    async def story() -> None:
        async with scripted_worker("killed", sockets) as worker:
            await join(worker)
            doomed = await asyncio.to_thread(start_process, "-c", DIES_BEFORE_THE_ACK)
            await until(lambda: worker.connected)
            worker.use(1, "r-1", tenant)
            await until(lambda: doomed.popen.poll() == -9)
            assert await in_thread(stored) == [("r-1", 5)]
            assert worker.usage_acks == []
            async with controller():
                await until(lambda: worker.usage_acks == [1])
            assert await in_thread(stored) == [("r-1", 5)]

    asyncio.run(story())


def test_records_of_unknown_tenants_do_not_wedge_the_queue(tenant: str, sockets: Path) -> None:
    """A record of a tenant that was erased, or of none, is stored all the same, and those behind it arrive."""

    async def story() -> None:
        gone = uuid.uuid4()
        async with scripted_worker("strange", sockets) as worker, controller():
            await join(worker)
            await until(lambda: worker.connected)
            worker.use(1, "r-1", str(gone))
            worker.use(2, "r-2", "no\0id")
            worker.use(3, "r-3", tenant)
            await until(lambda: worker.usage_acks and worker.usage_acks[-1] == 3)
            records = await in_thread(
                lambda: dict(UsageRecord.objects.across_tenants().values_list("request_id", "tenant_id"))
            )
            assert records == {"r-1": gone, "r-2": NOBODY, "r-3": uuid.UUID(tenant)}

    asyncio.run(story())


def test_records_wait_while_the_table_is_locked(tenant: str, sockets: Path) -> None:
    """While Postgres cannot store, the stream lives on, policy included, and the records are stored once it can."""

    def lock(cursor: object) -> None:
        cursor.execute("LOCK TABLE tenants_usagerecord IN ACCESS EXCLUSIVE MODE")  # type: ignore[attr-defined]

    async def story() -> None:
        async with scripted_worker("patient", sockets) as worker, controller():
            await join(worker)
            await until(lambda: worker.pushes)
            release, locked = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def hold() -> None:
                from django.db import transaction

                with transaction.atomic(), connection.cursor() as cursor:
                    lock(cursor)
                    loop.call_soon_threadsafe(locked.set)
                    asyncio.run_coroutine_threadsafe(release.wait(), loop).result(120)

            holding = asyncio.create_task(in_thread(hold))
            await locked.wait()
            worker.use(1, "r-1", tenant)
            worker.emit(pb.ControlEvent(stats=pb.Stats(at=1.0)))
            num_streams, num_pushes = worker.num_streams, len(worker.pushes)
            from tests.gateway.controller.conftest import set_hard

            await in_thread(lambda: set_hard(tenant, 1, 7 << 20))
            await until(lambda: len(worker.pushes) > num_pushes)
            assert worker.usage_acks == []
            release.set()
            await holding
            await until(lambda: worker.usage_acks == [1])
            assert worker.num_streams == num_streams
            assert await until_stored(stored) == [("r-1", 5)]

    asyncio.run(story())
