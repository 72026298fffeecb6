"""Rates on trial refuse nobody and count whom they would have refused."""

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import redis.asyncio

from gateway.admission.admit import Admission
from gateway.admission.leases import Leases
from gateway.admission.trials import Trials
from gateway.api.errors import RateLimited
from tenants.console.readings import shadow_counts
from tenants.contracts import KeyGrant, ShadowLimits
from tests.gateway.api.test_running import grant


def tried(*, binding_rpm: int = 0, **limits: int) -> KeyGrant:
    """Return a new tenant's grant with these rates on trial."""
    policy = msgspec.structs.replace(grant().policy, rpm=binding_rpm, shadow=ShadowLimits(**limits))
    return msgspec.structs.replace(grant(), tenant_id=uuid.uuid4().hex, policy=policy)


def run(story: Callable[[Admission, Trials], Coroutine[Any, Any, None]]) -> None:
    """Run a story with the admission of one web process, and stop that."""

    async def whole() -> None:
        store = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])
        leases = Leases(store)
        trials = Trials(leases, store)
        trials.start()
        try:
            await story(Admission(leases, trials), trials)
        finally:
            await trials.stop()
            await leases.stop()
            await store.aclose()

    asyncio.run(whole())


async def admit(admission: Admission, whose: KeyGrant, *, tokens: int = 10, used: int = 10, prompt: int = 1) -> None:
    """Admit one request and settle it."""
    permit = await admission.admit(whose, prompt_tokens=prompt, tokens=tokens, now=time.monotonic())
    permit.settle(used)


def test_requests_over_a_rate_on_trial_pass_and_count() -> None:
    """Of five requests two are over three a minute: all pass, and two are counted, once each."""
    whose = tried(rpm=3, tpm=1_000_000)

    async def story(admission: Admission, trials: Trials) -> None:
        for _ in range(5):
            await admit(admission, whose)

    run(story)
    assert shadow_counts(whose.tenant_id) == {"rpm:3": 2}


def test_tokens_on_trial_are_settled_by_what_was_used() -> None:
    """A request that used little leaves the rest of its tokens to the next one, as with a limit that binds."""
    whose = tried(tpm=100)

    async def story(admission: Admission, trials: Trials) -> None:
        for _ in range(4):
            await admit(admission, whose, tokens=90, used=1)
            await asyncio.gather(*trials._running)

    run(story)
    assert shadow_counts(whose.tenant_id) == {}


@pytest.mark.parametrize("prompt", [1, 101])
def test_tokens_over_a_limit_on_trial_count(prompt: int) -> None:
    """Whether the tokens of a minute are used up, or the prompt alone is more than they."""
    whose = tried(tpm=100)

    async def story(admission: Admission, trials: Trials) -> None:
        await admit(admission, whose, tokens=100, used=100)
        await asyncio.gather(*trials._running)
        await admit(admission, whose, tokens=prompt + 50, used=50, prompt=prompt)

    run(story)
    assert shadow_counts(whose.tenant_id) == {"tpm:100": 1}


def test_another_value_counts_anew() -> None:
    """What a trial of one value has counted is not taken for what another would do."""
    whose = tried(rpm=1)
    looser = msgspec.structs.replace(whose, policy=msgspec.structs.replace(whose.policy, shadow=ShadowLimits(rpm=2)))

    async def story(admission: Admission, trials: Trials) -> None:
        for tenant in (whose, whose, looser, looser, looser):
            await admit(admission, tenant)
            await asyncio.gather(*trials._running)

    run(story)
    assert shadow_counts(whose.tenant_id) == {"rpm:1": 1, "rpm:2": 3}  # the minute's requests are used up


def test_what_a_binding_limit_refuses_is_not_tried() -> None:
    """A trial counts what it would do to the requests that there are."""
    whose = tried(binding_rpm=2, rpm=1)

    async def story(admission: Admission, trials: Trials) -> None:
        for _ in range(2):
            await admit(admission, whose)
        for _ in range(3):
            with pytest.raises(RateLimited):
                await admit(admission, whose)

    run(story)
    assert shadow_counts(whose.tenant_id) == {"rpm:1": 1}


def test_nothing_on_trial_costs_nothing() -> None:
    """A tenant without a trial starts no task and asks for no lease."""

    async def story(admission: Admission, trials: Trials) -> None:
        assert trials.begin(tried(), prompt_tokens=1, tokens=10) is None
        assert not trials._running

    run(story)


def test_counts_wait_for_a_redis_that_is_away() -> None:
    """What could not be published is kept and published later."""

    async def story() -> None:
        gone = redis.asyncio.Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.2)
        store = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])
        leases = Leases(store)
        trials = Trials(leases, gone)
        whose = tried(rpm=1)
        for _ in range(3):
            trials.begin(whose, prompt_tokens=1, tokens=1)
        await asyncio.gather(*trials._running)
        await trials._flush()
        assert await asyncio.to_thread(shadow_counts, whose.tenant_id) == {}
        trials.store = store
        await trials.stop()
        assert await asyncio.to_thread(shadow_counts, whose.tenant_id) == {"rpm:1": 2}
        await leases.stop()
        await store.aclose()
        await gone.aclose()

    asyncio.run(story())
