"""A worker is kept while its stream or its heartbeat lives, and forgotten, with its grants, long after both ended."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from gateway.controller import roll
from tenants import selectors
from tenants.models import Worker
from tests.gateway.controller.conftest import controller, in_thread, until, until_stored
from tests.gateway.controller.scripted_worker import scripted_worker
from tests.gateway.controller.test_policy_push import all_applied, join

MIB = 1 << 20


def silence(worker_id: str, seconds: float) -> None:
    """Make a worker's last heartbeat older."""
    Worker.objects.filter(pk=worker_id).update(last_seen_at=timezone.now() - timedelta(seconds=seconds))


@pytest.fixture(autouse=True)
def _quick_tidying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tidy every tenth of a second, and at once after an election."""
    monkeypatch.setattr(roll, "TIDY_SECONDS", 0.1)
    monkeypatch.setattr(roll, "SETTLE_SECONDS", 0.0)


def test_an_open_stream_keeps_a_silent_worker_alive(tenant: str, sockets: Path) -> None:
    """A worker whose heartbeats don't get through is still live while the controller talks to it."""

    async def story() -> None:
        async with scripted_worker("mute", sockets) as worker, controller():
            await join(worker)
            await until_stored(lambda: all_applied(1))
            await in_thread(lambda: silence("mute", 600))
            live = await until_stored(selectors.live_workers)
            assert [view.worker_id for view in live] == ["mute"]

    asyncio.run(story())


def test_a_worker_that_is_away_keeps_its_grant_until_it_is_forgotten(tenant: str, sockets: Path) -> None:
    """A stale worker may still serve, cut off from here: its share goes to the others only when it is forgotten."""

    async def story() -> None:
        async with scripted_worker("here", sockets) as here, controller():
            async with scripted_worker("away", sockets) as away:
                await join(here)
                await join(away)
                await until(lambda: tenant in away.grants and away.grants[tenant].kv_hard_bytes == 50 * MIB)
                await until_stored(lambda: all_applied(1))
            await in_thread(lambda: silence("away", 60))
            await until_stored(lambda: [view.worker_id for view in selectors.live_workers()] == ["here"])
            streams, pushes = here.num_streams, len(here.pushes)
            here.break_stream()
            await until(lambda: here.num_streams > streams and len(here.pushes) > pushes)
            assert here.grants[tenant].kv_hard_bytes == 50 * MIB
            await in_thread(lambda: silence("away", roll.FORGET_SECONDS + 1))
            await until(lambda: here.grants[tenant].kv_hard_bytes == 100 * MIB)
            assert await in_thread(lambda: list(Worker.objects.values_list("pk", flat=True))) == ["here"]

    asyncio.run(story())


def test_a_worker_that_never_answered_gets_no_share(tenant: str, sockets: Path) -> None:
    """An announcement with an address that nobody serves takes nothing from the workers that serve."""

    async def story() -> None:
        async with scripted_worker("served", sockets) as worker, controller():
            async with scripted_worker("never", sockets) as never:
                pass
            await join(never)
            await join(worker)
            await until(lambda: tenant in worker.grants)
            assert worker.grants[tenant].kv_hard_bytes == 100 * MIB

    asyncio.run(story())


def test_a_worker_that_moved_is_found(tenant: str, sockets: Path) -> None:
    """A worker that comes back at another address is served there."""

    async def story() -> None:
        async with scripted_worker("old", sockets) as old, scripted_worker("new", sockets) as new, controller():
            await join(old)
            await until(lambda: old.pushes)
            new.worker_id = "old"
            await join(new)
            await until(lambda: new.grants)
            await until(lambda: not old.connected)

    asyncio.run(story())
