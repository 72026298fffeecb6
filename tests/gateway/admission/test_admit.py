"""What a request is told of its limits, without a deployment."""

import asyncio
import os
import time
import uuid

import msgspec
import pytest
import redis.asyncio

from gateway.admission.admit import Admission
from gateway.admission.leases import Leases
from gateway.api.errors import RateLimited
from tenants.contracts import KeyGrant
from tests.gateway.api.test_running import grant


def test_a_debt_is_in_the_time_to_reset() -> None:
    """Nothing remains, never less than that; until the limit is whole again the debt has to flow in as well."""

    async def story() -> None:
        store = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])
        leases = Leases(store)
        policy = msgspec.structs.replace(grant().policy, tpm=600)
        limited = msgspec.structs.replace(grant(), tenant_id=uuid.uuid4().hex, policy=policy)
        permit = await Admission(leases).admit(limited, prompt_tokens=1, tokens=600, now=time.monotonic())
        permit.settle(700)
        told = dict(permit.headers(time.monotonic()))
        assert told[b"x-ratelimit-remaining-tokens"] == b"0"
        assert told[b"x-ratelimit-reset-tokens"].startswith((b"1m9.", b"1m10"))  # 700 at 10 a second
        await leases.stop()
        await store.aclose()

    asyncio.run(story())


def limited_to(**limits: int) -> KeyGrant:
    """Return a tenant nobody has met, with limits a minute."""
    policy = msgspec.structs.replace(grant().policy, **limits)
    return msgspec.structs.replace(grant(), tenant_id=uuid.uuid4().hex, policy=policy)


def test_calls_that_generate_nothing_have_buckets_of_their_own() -> None:
    """As large as those of requests; neither takes from the other, and tokens in debt hold up no call."""

    async def story() -> None:
        store = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])
        leases = Leases(store)
        admission, caller = Admission(leases), limited_to(rpm=2, tpm=600)
        now = time.monotonic()
        permit = await admission.admit(caller, prompt_tokens=1, tokens=600, now=now)
        permit.settle(900)
        for remaining in (b"1", b"0"):
            call = await admission.admit_call(caller, now=now, apart=True)
            assert dict(call.headers(now))[b"x-ratelimit-remaining-requests"] == remaining
        with pytest.raises(RateLimited):
            await admission.admit_call(caller, now=now, apart=True)
        await admission.admit_call(caller, now=now, apart=False)
        with pytest.raises(RateLimited) as caught:
            await admission.admit_call(caller, now=now, apart=False)
        assert caught.value.type == "requests"
        await leases.stop()
        await store.aclose()

    asyncio.run(story())


def test_a_check_takes_nothing() -> None:
    """However often it is asked, all requests are there; where they are used up it refuses as for a request."""

    async def story() -> None:
        store = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])
        leases = Leases(store)
        admission, caller = Admission(leases), limited_to(rpm=2)
        now = time.monotonic()
        for _ in range(5):
            await admission.check(caller, now=now)
        for _ in range(2):
            await admission.admit(caller, prompt_tokens=1, tokens=1, now=now)
        with pytest.raises(RateLimited) as caught:
            await admission.check(caller, now=now)
        assert b"retry-after-ms" in dict(caught.value.headers)
        await leases.stop()
        await store.aclose()

    asyncio.run(story())
