"""Calls about sessions run in a few threads, of which no tenant has all."""

import asyncio
import threading

import pytest
from django.db import OperationalError

from gateway.reads import StoreAway
from gateway.workers.session_desk import MOST_AT_ONCE, DeskBusy, SessionDesk


def test_a_tenant_has_a_few_calls_at_once_and_others_go_on() -> None:
    """One too many is told so at once; when one ends there is room again."""
    go = threading.Event()

    async def story() -> None:
        desk = SessionDesk()
        running = [asyncio.create_task(desk.run("a", go.wait, 60)) for _ in range(MOST_AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(DeskBusy):
            await desk.run("a", go.wait, 60)
        assert await desk.run("b", lambda: "told") == "told"
        go.set()
        assert await asyncio.gather(*running) == [True] * MOST_AT_ONCE
        assert await desk.run("a", lambda: "told") == "told"
        desk.close()

    asyncio.run(story())


def test_a_call_that_fails_leaves_its_place() -> None:
    """Whatever it raises reaches the caller; a store that is away is told as that."""

    def fail(error: Exception) -> None:
        raise error

    async def story() -> None:
        desk = SessionDesk()
        for _ in range(MOST_AT_ONCE + 1):
            with pytest.raises(ZeroDivisionError):
                await desk.run("a", fail, ZeroDivisionError())
            with pytest.raises(StoreAway):
                await desk.run("a", fail, OperationalError("away"))
        desk.close()

    asyncio.run(story())
