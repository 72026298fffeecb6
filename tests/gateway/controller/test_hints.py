"""Dashboards hear of acks, stats and workers; without Redis all but the dashboards goes on."""

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from channels.layers import get_channel_layer
from django.conf import settings

from engine.protocol import engine_pb2 as pb
from tenants.reports import LIVE_GROUP, STATS_KEY, WorkerStats
from tests.gateway.controller.conftest import controller, in_thread, set_hard, until, until_stored
from tests.gateway.controller.scripted_worker import ScriptedWorker, scripted_worker
from tests.gateway.controller.test_policy_push import all_applied, join
from tests.gateway.controller.test_sharing import describe, make_group, prefixes, register


@pytest.fixture(autouse=True)
def _own_group(settings: Any) -> None:
    """Keep other tests' hints out: all runs of a test session share one Redis."""
    layer = settings.CHANNEL_LAYERS["default"]
    settings.CHANNEL_LAYERS = {"default": layer | {"CONFIG": layer["CONFIG"] | {"prefix": uuid.uuid4().hex}}}


async def collect(into: list[dict[str, Any]], subscribed: asyncio.Event) -> None:
    """Append every hint of the group."""
    layer = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(LIVE_GROUP, channel)
    subscribed.set()
    while True:
        into.append(await layer.receive(channel))


def of_kind(hints: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the hints of one kind."""
    return [hint for hint in hints if hint["kind"] == kind]


def told(hints: list[dict[str, Any]], version: int) -> list[dict[str, Any]]:
    """Return the hints of one policy version."""
    return [hint for hint in of_kind(hints, "policy") if hint["version"] == version]


async def report_stats(worker: ScriptedWorker, tenant: str) -> None:
    """Send statistics 40 times a second."""
    while True:
        use = pb.TenantStats(tenant=tenant, kv_bytes=5 << 20, running=2)
        worker.emit(pb.ControlEvent(stats=pb.Stats(at=time.time(), running=2, core_ready=True, tenants=[use])))
        await asyncio.sleep(0.025)


def test_a_push_is_hinted_and_then_its_ack_with_its_latency(tenant: str, sockets: Path) -> None:
    """A policy change is first said to be on its way, then on how many workers it is applied, in how many ms."""

    async def story() -> None:
        hints: list[dict[str, Any]] = []
        subscribed = asyncio.Event()
        listening = asyncio.create_task(collect(hints, subscribed))
        await subscribed.wait()
        async with scripted_worker("hinted", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            version = await in_thread(lambda: set_hard(tenant, 1, 60 << 20))
            await until(lambda: any(hint["applied"] for hint in told(hints, version)))
            told_of = [(hint["tenant_id"], hint["applied"], hint["of"]) for hint in told(hints, version)]
            assert told_of == [(tenant, 0, 1), (tenant, 1, 1)]
            sent, applied = told(hints, version)
            assert sent["ms"] == 0 <= applied["ms"] < 60_000
            assert of_kind(hints, "workers")
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    asyncio.run(story())


def test_a_groups_version_is_told_again_once_its_prefixes_are_in_force(tenant: str, sockets: Path) -> None:
    """Hints name the group instead of a tenant; after the ack of its limits comes that of its tokens."""

    async def story() -> None:
        hints: list[dict[str, Any]] = []
        subscribed = asyncio.Event()
        listening = asyncio.create_task(collect(hints, subscribed))
        await subscribed.wait()
        async with scripted_worker("prefixed", sockets) as worker, controller():
            await join(worker)
            await in_thread(make_group)
            prefix = await in_thread(register)
            await until(lambda: any(hint["applied"] for hint in told(hints, prefix.version)))
            assert prefixes(worker) == []
            hints.clear()
            describe(worker)
            await until(lambda: any(hint["applied"] for hint in told(hints, prefix.version)))
            assert prefixes(worker) == [prefix.id]
            assert {(hint["share_group"], hint["tenant_id"]) for hint in told(hints, prefix.version)} == {("house", "")}
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    asyncio.run(story())


def test_a_change_that_no_worker_can_take_is_not_said_to_be_sent(tenant: str, sockets: Path, caplog: Any) -> None:
    """With nobody connected a version stays "saved"; a worker that comes later takes it, and then it is told."""

    async def story() -> None:
        hints: list[dict[str, Any]] = []
        subscribed = asyncio.Event()
        listening = asyncio.create_task(collect(hints, subscribed))
        await subscribed.wait()
        async with controller():
            async with scripted_worker("leaver", sockets) as worker:
                await join(worker)
                await until_stored(lambda: all_applied(1))
            await until(lambda: "worker_down" in caplog.text)  # the controller knows it, too
            version = await in_thread(lambda: set_hard(tenant, 1, 60 << 20))
            async with scripted_worker("comer", sockets) as later:
                assert told(hints, version) == []
                await join(later)
                await until(lambda: any(hint["applied"] for hint in told(hints, version)))
                assert [hint["applied"] for hint in told(hints, version)][:2] == [0, 1]
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    asyncio.run(story())


def test_stats_are_kept_and_hinted_at_most_four_times_a_second(tenant: str, sockets: Path) -> None:
    """The last stats lie in Redis with an expiry; hints of them carry rising numbers and are rationed."""

    async def story() -> None:
        hints: list[dict[str, Any]] = []
        subscribed = asyncio.Event()
        listening = asyncio.create_task(collect(hints, subscribed))
        await subscribed.wait()
        async with scripted_worker("counted", sockets) as worker, controller():
            await join(worker)
            await until(lambda: worker.connected)
            reporting = asyncio.create_task(report_stats(worker, tenant))
            started = time.monotonic()
            await until(lambda: len(of_kind(hints, "stats")) >= 5)
            assert time.monotonic() - started >= 0.9
            reporting.cancel()
            numbers = [hint["seq"] for hint in hints]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            stats = msgspec.convert(of_kind(hints, "stats")[-1]["workers"][0], WorkerStats)
            assert (stats.worker_id, stats.running, stats.tenants[0].kv_bytes) == ("counted", 2, 5 << 20)
            with redis.Redis.from_url(settings.REDIS_URL) as client:
                key = STATS_KEY.format(worker_id="counted")
                assert msgspec.json.decode(client.get(key), type=WorkerStats).core_ready
                assert 0 < client.ttl(key) <= 5
        listening.cancel()
        await asyncio.gather(listening, reporting, return_exceptions=True)

    asyncio.run(story())


def test_redis_away_disturbs_neither_policy_nor_usage(tenant: str, sockets: Path, settings: Any, caplog: Any) -> None:
    """With nothing at Redis' address policies are pushed and acked and usage is stored; the log says it once."""
    nowhere = f"unix://{sockets}/nothing.sock"
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [nowhere]}}
    }

    async def story() -> None:
        async with scripted_worker("unhinted", sockets) as worker, controller(redis_url=nowhere):
            await join(worker)
            await until(lambda: worker.connected)
            reporting = asyncio.create_task(report_stats(worker, tenant))
            await until_stored(lambda: all_applied(1))
            version = await in_thread(lambda: set_hard(tenant, 1, 60 << 20))
            acks = await until_stored(lambda: all_applied(version))
            assert acks.ms < 60_000
            worker.use(1, "r-1", tenant)
            await until(lambda: worker.usage_acks == [1])
            await until(lambda: "redis_away" in caplog.text)
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    asyncio.run(story())
    assert caplog.text.count("redis_away") == 1
