"""The controller writes the time series: late rather than twice, and never in the way."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from engine.protocol import engine_pb2 as pb
from gateway.controller.messages import worker_stats
from gateway.controller.series import SeriesRecorder
from gateway.controller.threads import DatabaseThreads
from tenants.models import InterferenceSample, PressureSample, TenantSample
from tenants.reports import WorkerStats
from tests.gateway.controller.conftest import controller, in_thread, until, until_stored
from tests.gateway.controller.scripted_worker import scripted_worker
from tests.gateway.controller.test_policy_push import join

START = 1_900_000_000.0


def told(tenant: str, service: float, *, core: float = START, cached_blocks: int = 0) -> pb.Stats:
    """A worker's statistics."""
    pairs = [pb.Interference(by=tenant, of="group:bank", cached_blocks=cached_blocks)] if cached_blocks else []
    return pb.Stats(
        at=START,
        core_ready=True,
        core_started_at=core,
        blocks_total=8,
        blocks_free=2,
        block_bytes=100,
        pressure=pb.Pressure(score=0.5, use=0.25),
        tenants=[
            pb.TenantStats(
                tenant=tenant,
                kv_bytes=300,
                kv_peak_bytes=400,
                kv_borrowed_bytes=100,
                running=1,
                service=service,
                above_soft_seconds=service / 10,
                output_tokens=int(service) // 2,
                weight=2.0,
            )
        ],
        interference=pairs,
    )


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def stats(tenant: str, service: float, **more: Any) -> WorkerStats:
    """As links hand them on."""
    return worker_stats("w-0", told(tenant, service, **more))


def rows() -> list[TenantSample]:
    """The tenants' rows, oldest first."""
    return list(TenantSample.objects.across_tenants().order_by("at"))


def test_what_a_worker_tells_is_written_after_ten_seconds(tenant: str) -> None:
    """One row of pressure, one of the tenant, one of each pair; all that the wire has comes through."""

    async def story() -> None:
        threads, clock = DatabaseThreads(), Clock()
        recorder = SeriesRecorder(threads, term=1, clock=clock)
        await recorder.claim()
        recorder.take(stats(tenant, 40.0, cached_blocks=3))
        await recorder.write()
        assert await in_thread(rows) == []
        clock.now += 10
        await recorder.write()
        await asyncio.to_thread(threads.close)

    asyncio.run(story())
    (row,) = rows()
    assert (row.at.timestamp(), row.worker_id, str(row.tenant_id)) == (START, "w-0", tenant)
    assert (row.kv_bytes, row.kv_peak_bytes, row.kv_borrowed_bytes, row.weight) == (300, 400, 100, 2.0)
    assert (row.service, row.above_soft_seconds, row.output_tokens) == (40.0, 4.0, 20)
    pressure = PressureSample.objects.get()
    assert (pressure.score, pressure.use, pressure.pool_use) == (0.5, 0.25, 0.75)
    pair = InterferenceSample.objects.across_tenants().get()
    assert (pair.by, pair.of, pair.cached_blocks) == (tenant, "group:bank", 3)


def test_postgres_away_delays_rows_and_loses_none(
    tenant: str, without_postgres: Callable[[], AbstractContextManager[None]]
) -> None:
    """Buckets wait, taking goes on, and they are written when it is back, each at its own time."""

    async def story() -> None:
        threads, clock = DatabaseThreads(), Clock()
        recorder = SeriesRecorder(threads, term=1, clock=clock)
        with without_postgres():
            await recorder.claim()
            for number in range(3):
                recorder.take(stats(tenant, 10.0 * (number + 1)))
                clock.now += 10
                await recorder.write()
        await recorder.write()
        await asyncio.to_thread(threads.close)

    asyncio.run(story())
    assert [(row.at.timestamp(), row.service) for row in rows()] == [
        (START, 10.0),
        (START + 10, 10.0),
        (START + 20, 10.0),
    ]


def test_too_many_waiting_buckets_leave_a_gap(
    tenant: str, without_postgres: Callable[[], AbstractContextManager[None]], monkeypatch: Any
) -> None:
    """The oldest go: memory has a bound."""
    monkeypatch.setattr("gateway.controller.series.MAX_WAITING", 2)

    async def story() -> None:
        threads, clock = DatabaseThreads(), Clock()
        recorder = SeriesRecorder(threads, term=1, clock=clock)
        with without_postgres():
            for number in range(4):
                recorder.take(stats(tenant, 10.0 * (number + 1)))
                clock.now += 10
                await recorder.write()
        await recorder.write()
        await asyncio.to_thread(threads.close)

    asyncio.run(story())
    assert [row.at.timestamp() for row in rows()] == [START + 20, START + 30]


def test_a_hand_over_in_mid_bucket_loses_and_doubles_nothing(tenant: str) -> None:
    """The new leader goes on from the mark; what the old one still writes is refused."""

    async def story() -> None:
        threads, clock = DatabaseThreads(), Clock()
        old = SeriesRecorder(threads, term=1, clock=clock)
        old.take(stats(tenant, 10.0, cached_blocks=1))
        clock.now += 12
        old.take(stats(tenant, 16.0, cached_blocks=2))
        await old.write()
        new = SeriesRecorder(threads, term=2, clock=clock)
        await new.claim()
        clock.now += 2
        new.take(stats(tenant, 19.0, cached_blocks=4))
        clock.now += 10
        await old.write()
        await new.write()
        await asyncio.to_thread(threads.close)

    asyncio.run(story())
    assert [(row.at.timestamp(), row.service) for row in rows()] == [(START, 10.0), (START + 10, 9.0)]
    pairs = InterferenceSample.objects.across_tenants().order_by("at")
    assert [pair.cached_blocks for pair in pairs] == [1, 3]


def test_a_controller_writes_what_its_workers_tell(tenant: str, sockets: Path, monkeypatch: Any) -> None:
    """Through the stream and the fleet, a broken stream in between: once, as the wire says."""
    monkeypatch.setattr("gateway.controller.series.FINE_SECONDS", 1)
    monkeypatch.setattr("gateway.controller.tally.FINE_SECONDS", 1)
    monkeypatch.setattr("gateway.controller.series.GRACE_SECONDS", 0.0)

    def service() -> float:
        return sum(row.service for row in rows())

    async def story() -> None:
        async with scripted_worker("w-series", sockets) as worker, controller():
            await join(worker)
            await until(lambda: worker.connected)

            core = time.time()
            worker.emit(pb.ControlEvent(stats=told(tenant, 10.0, core=core, cached_blocks=4)))
            await until_stored(lambda: service() == 10.0)
            worker.break_stream()
            await until(lambda: worker.num_streams >= 2 and worker.connected)
            worker.emit(pb.ControlEvent(stats=told(tenant, 25.0, core=core, cached_blocks=4)))
            await until_stored(lambda: service() == 25.0)

    asyncio.run(story())
    assert [pair.cached_blocks for pair in InterferenceSample.objects.across_tenants()] == [4]
