"""How many calls that count tokens a tenant has at once."""

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import Any, cast

import msgspec
import pytest

from gateway.admission.admit import Admission
from gateway.admission.counting import LARGE, MOST_CALLS, MOST_LARGE, Counting
from gateway.api.errors import RateLimited
from tests.gateway.api.test_running import grant


def counting() -> Counting:
    """Return one for tenants without limits a minute, whose buckets nobody asks for."""
    return Counting(Admission(cast(Any, None)))


def test_calls_at_once_are_bounded_by_tenant() -> None:
    """One more than a tenant may have is refused for a moment; another tenant has its own, and an end makes room."""

    async def story() -> None:
        counts = counting()
        free = msgspec.structs.replace(grant(), rpm=0, policy=msgspec.structs.replace(grant().policy, rpm=0))
        async with AsyncExitStack() as calls:
            for _ in range(MOST_CALLS):
                await calls.enter_async_context(counts.call(free))
            with pytest.raises(RateLimited) as caught:
                await calls.enter_async_context(counts.call(free))
            assert b"retry-after-ms" in dict(caught.value.headers)
            await calls.enter_async_context(counts.call(msgspec.structs.replace(free, tenant_id="another")))
        async with counts.call(free) as permit:
            assert permit.headers(0.0) == []

    asyncio.run(story())


def test_large_texts_at_once_are_bounded_by_tenant() -> None:
    """Small ones are not, and one that fails gives its turn back."""
    counts = counting()
    with ExitStack() as turns:
        for _ in range(MOST_LARGE):
            turns.enter_context(counts.turn("a", LARGE + 1))
        with pytest.raises(RateLimited):
            turns.enter_context(counts.turn("a", LARGE + 1))
        turns.enter_context(counts.turn("a", LARGE))
        turns.enter_context(counts.turn("b", LARGE + 1))
    for _ in range(MOST_LARGE + 1):
        with pytest.raises(ValueError, match="no text"), counts.turn("a", LARGE + 1):
            raise ValueError("no text")
    with counts.turn("a", LARGE + 1):
        pass
