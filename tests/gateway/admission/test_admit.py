"""What a request is told of its limits, without a deployment."""

import asyncio
import os
import time
import uuid

import msgspec
import redis.asyncio

from gateway.admission.admit import Admission
from gateway.admission.leases import Leases
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
