"""What one stream's intake acks: nothing that is not stored, and everything in the end."""

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest
from django.db import OperationalError

from engine.protocol import engine_pb2 as pb
from gateway.controller import usage
from gateway.controller.threads import DatabaseThreads
from gateway.controller.usage import UsageIntake
from tenants.contracts import UsageEntry
from tests.gateway.controller.conftest import until


class Store:
    """The domain's `record_usage`, which a test can stop or break."""

    def __init__(self) -> None:
        self.may_store = threading.Event()
        self.may_store.set()
        self.failures = 0
        self.calls = 0
        self.stored: list[str] = []

    def __call__(self, entries: Sequence[UsageEntry]) -> int:
        """Store, when it may."""
        self.calls += 1
        assert self.may_store.wait(60)
        if self.failures:
            self.failures -= 1
            raise OperationalError("the database is away")
        new = [entry.request_id for entry in entries if entry.request_id not in self.stored]
        self.stored += new
        return len(new)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Put a store in the place of the database."""
    store = Store()
    monkeypatch.setattr(usage, "record_usage", store)
    monkeypatch.setattr(usage, "FIRST_BACKOFF", 0.01)
    yield store
    store.may_store.set()


def batch(*sequences: int) -> pb.UsageBatch:
    """Return records of these sequences."""
    return pb.UsageBatch(records=[pb.UsageRecord(sequence=number, request_id=f"r-{number}") for number in sequences])


async def with_intake(story: object) -> list[int]:
    """Run a story with an intake; return what was acked."""
    acked: list[int] = []
    threads = DatabaseThreads(1)
    intake = UsageIntake("w", threads, acked.append)
    task = asyncio.create_task(intake.run())
    try:
        await story(intake, acked)  # type: ignore[operator]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(threads.close)
    return acked


def test_a_failure_is_tried_again(store: Store) -> None:
    """While the database fails nothing is acked; then all of it is."""
    store.failures = 3

    async def story(intake: UsageIntake, acked: list[int]) -> None:
        intake.take(batch(1, 2, 5))
        await until(lambda: acked)
        assert store.calls == 4

    assert asyncio.run(with_intake(story)) == [5]
    assert store.stored == ["r-1", "r-2", "r-5"]


def test_records_that_come_again_while_they_wait_are_kept_once(store: Store) -> None:
    """A worker that repeats itself during an outage costs no memory and is acked once all is stored."""
    store.may_store.clear()

    async def story(intake: UsageIntake, acked: list[int]) -> None:
        for _ in range(5):
            intake.take(batch(1, 2))
            await asyncio.sleep(0)
        intake.take(batch(3))
        store.may_store.set()
        await until(lambda: acked and acked[-1] == 3)
        assert store.calls <= 3

    asyncio.run(with_intake(story))
    assert store.stored == ["r-1", "r-2", "r-3"]


def test_what_did_not_fit_is_never_acked_before_it_came_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is turned away leaves a hole that no later ack may cover."""
    monkeypatch.setattr(usage, "MAX_WAITING", 2)
    store.may_store.clear()

    async def story(intake: UsageIntake, acked: list[int]) -> None:
        intake.take(batch(1, 2))
        intake.take(batch(3, 4))  # turned away
        store.may_store.set()
        await until(lambda: acked == [2])
        intake.take(batch(5, 6))
        await until(lambda: "r-6" in store.stored)
        await until(lambda: len(acked) == 2)
        assert max(acked) == 2
        intake.take(batch(3, 4))
        await until(lambda: acked[-1] >= 4)
        intake.take(batch(5, 6))
        await until(lambda: acked[-1] == 6)

    asyncio.run(with_intake(story))
    assert sorted(store.stored) == [f"r-{number}" for number in range(1, 7)]


def test_an_empty_batch_is_nothing(store: Store) -> None:
    """A batch without records is neither stored nor acked."""

    async def story(intake: UsageIntake, acked: list[int]) -> None:
        intake.take(pb.UsageBatch())
        intake.take(batch(1))
        await until(lambda: acked)

    assert asyncio.run(with_intake(story)) == [1]
