"""Slices leased from a real Redis by several processes' worth of `Leases`."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from gateway.admission import leases as module
from gateway.admission.leases import Leases
from gateway.embedded.redis import EmbeddedRedis

Story = Callable[..., Coroutine[Any, Any, None]]


@asynccontextmanager
async def sharing(url: str, count: int, *, start: bool = False) -> AsyncIterator[list[Leases]]:
    """`count` web processes' leases on one Redis."""
    stores = [redis.asyncio.Redis.from_url(url, socket_timeout=20, socket_connect_timeout=20) for _ in range(count)]
    every = [Leases(store, count) for store in stores]
    try:
        if start:
            for one in every:
                one.start()
        yield every
    finally:
        for one in every:
            await one.stop()
        for store in stores:
            await store.aclose()


def scope() -> str:
    """Return a fresh limit's name."""
    return f"test:{uuid.uuid4().hex}"


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run one story."""
    asyncio.run(story)


@pytest.mark.parametrize(("limit", "processes"), [(5, 4), (100, 3), (3000, 4)])
def test_sum_never_exceeds_the_limit(limit: int, processes: int) -> None:
    """However many processes take at once, the sum is the bucket and what flowed in."""

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], processes) as every:
            began = time.monotonic()

            async def hammer(one: Leases) -> int:
                taken = 0
                for _ in range(limit):
                    taken += await one.take(name, limit, 1) == 0
                return taken

            taken = sum(await asyncio.gather(*(hammer(one) for one in every)))
            flowed = (time.monotonic() - began) * limit / 60
            assert taken <= limit + flowed + 1
            assert taken >= limit * 0.7  # what lies in other processes' slices comes back after SLICE_SECONDS

    run(story())


def test_small_limit_is_used_up_exactly() -> None:
    """A limit of five lets five through, wherever they arrive, and says how long the sixth waits."""

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], 2) as (one, other):
            began = time.monotonic()
            waits = [await (one if number % 2 else other).take(name, 5, 1) for number in range(7)]
            passed = time.monotonic() - began
            assert waits[:5] == [0] * 5
            assert all(12 - passed - 0.01 <= wait <= 12 for wait in waits[5:])

    run(story())


@contextmanager
def commands_about(name: str) -> Iterator[list[str]]:
    """Return a list that has Redis' commands about a limit once the block has ended."""
    found: list[str] = []
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as store, store.monitor() as seen:
        yield found
        store.echo(f"end of {name}")
        commands = iter(lambda: seen.next_command()["command"], f"ECHO end of {name}")
        found += [command for command in commands if name in command]


def test_slice_saves_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slice lasts nothing is asked of Redis."""
    monkeypatch.setattr(module, "SLICE_SECONDS", 600)

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], 1) as (one,):
            await one.take(name, 6000, 1)
            with commands_about(name) as asked:
                for _ in range(90):
                    assert await one.take(name, 6000, 1) == 0
            assert asked == []

    run(story())


def test_what_is_left_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unspent slice is given back, so that another process can use it."""
    monkeypatch.setattr(module, "SLICE_SECONDS", 0.1)

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], 1, start=True) as (one,):
            await one.take(name, 600, 1)
            held = one.state(name)
            assert held is not None
            assert held.amount > 1
            deadline = time.monotonic() + 60
            while held.amount:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
        async with sharing(os.environ["REDIS_URL"], 1) as (other,):
            assert await other.take(name, 600, 599) == 0

    run(story())


def test_killed_process_leaks_nothing() -> None:
    """What a process held when it was killed is only missing from the bucket, which refills; no key stays."""

    async def story() -> None:
        name = scope()
        store = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])
        killed = Leases(store)
        await killed.take(name, 600, 100)
        keys = [key async for key in store.scan_iter(f"tollgate:{{{name}}}*")]
        assert len(keys) == 2
        for key in keys:
            assert 0 < await store.pttl(key) <= 70_000
        await store.aclose()

    run(story())


def test_settled_debt_is_shared() -> None:
    """Usage above the reservation is charged to all processes, below it comes back."""

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], 2) as (one, other):
            assert await one.take(name, 1000, 100) == 0
            one.give(name, 1000, -850)
            await one.stop()
            assert await other.take(name, 1000, 200) > 0
            one.give(name, 1000, 900)
            await one.stop()
            deadline = time.monotonic() + 60
            while await other.take(name, 1000, 200):
                assert time.monotonic() < deadline

    run(story())


def test_told_wait_counts_the_debt() -> None:
    """What was used above the limit has to flow in first: whoever asks is told so, also another process."""

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], 2) as (one, other):
            began = time.monotonic()
            assert await one.take(name, 600, 600) == 0
            one.give(name, 600, -100)  # 10 a second: 100 of debt and the 10 that are wanted take 11 s
            first, at_once, elsewhere = [await each.take(name, 600, 10) for each in (one, one, other)]
            passed = time.monotonic() - began
            for wait in (first, at_once, elsewhere):
                assert 11 - passed - 0.01 <= wait <= 11.01
            held = one.state(name)
            assert held is not None
            assert held.balance(time.monotonic()) < 0

    run(story())


def test_after_the_told_wait_it_can_be_taken() -> None:
    """A client in debt that comes back when it was told to isn't sent away again."""

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], 1) as (one,):
            assert await one.take(name, 6000, 6000) == 0
            one.give(name, 6000, -300)  # 100 a second: three seconds of debt
            told = await one.take(name, 6000, 10)
            assert 0 < told < 5
            await asyncio.sleep(told + 0.01)
            assert await one.take(name, 6000, 10) == 0

    run(story())


def test_lower_limit_holds_at_once() -> None:
    """A slice of the old limit is worth nothing under a lower one."""

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], 1) as (one,):
            await one.take(name, 6000, 1)
            taken = [await one.take(name, 3, 1) for _ in range(10)]
            assert taken.count(0) <= 3

    run(story())


def test_flood_over_the_limit_does_not_flood_redis() -> None:
    """Refusals within a short time cost one question."""

    async def story() -> None:
        name = scope()
        async with sharing(os.environ["REDIS_URL"], 1) as (one,):
            while await one.take(name, 2, 1) == 0:
                pass
            with commands_about(name) as asked:
                began = time.monotonic()
                for _ in range(200):
                    assert await one.take(name, 2, 1) > 0
                passed = time.monotonic() - began
            questions = [command for command in asked if command.startswith("EVALSHA")]
            assert len(questions) <= passed / module.SHORT_SECONDS + 1

    run(story())


@pytest.fixture
def own_redis() -> Iterator[tuple[str, Callable[[], None]]]:
    """A Redis to kill: its URL and a function that does it."""
    with tempfile.TemporaryDirectory(prefix="tollgate-redis-") as folder:
        server = EmbeddedRedis(data_dir=Path(folder) / "data", socket_path=Path(folder) / "r.sock", durable=False)
        server.initialise()
        process = subprocess.Popen(server.command(parent=os.getpid()), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not server.is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.01)

        def kill() -> None:
            process.send_signal(signal.SIGKILL)
            process.wait()

        yield server.url, kill
        kill()


def test_without_redis_the_last_share_goes_on(own_redis: tuple[str, Callable[[], None]]) -> None:
    """Two processes that shared a limit keep half of it each when Redis dies, and answer quickly."""
    url, kill = own_redis

    async def story() -> None:
        name = scope()
        async with sharing(url, 2) as (one, other):
            for each in (one, other, one, other):
                assert await each.take(name, 600, 1) == 0
            kill()
            began = time.monotonic()
            taken = [0, 0]
            for index, each in enumerate((one, other)):
                for _ in range(600):
                    taken[index] += await each.take(name, 600, 1) == 0
            flowed = (time.monotonic() - began) * 600 / 2 / 60
            for number in taken:
                assert 250 <= number <= 300 + flowed + 10

    run(story())


def test_without_redis_from_the_start() -> None:
    """A process that never reached Redis serves an even share of the configured processes."""

    async def story() -> None:
        name = scope()
        async with sharing("unix:///nonexistent/redis.sock", 1) as (one,):
            alone = Leases(redis.asyncio.Redis.from_url("unix:///nonexistent/redis.sock"), processes=4)
            taken = [await alone.take(name, 100, 1) for _ in range(60)]
            assert 25 <= taken.count(0) <= 27
            assert await one.take(name, 100, 1) == 0

    run(story())
