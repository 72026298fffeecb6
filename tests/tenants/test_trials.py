"""Limits on trial: what the workers and the gateway have counted, added up."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis
from django.conf import settings

from tenants.contracts import Actor, TenantView
from tenants.reports import SHADOW_KEY, STATS_KEY, ShadowCount, ShadowReading, TenantUse, WorkerStats
from tenants.services.policy import set_policy
from tenants.trials import trials
from tests.tenants.services.test_policy import current


def stats(worker_id: str, tenant_id: str, *counts: ShadowCount) -> bytes:
    """Return what a worker would have said last."""
    use = TenantUse(
        tenant_id=tenant_id,
        kv_bytes=0,
        kv_peak_bytes=0,
        running=0,
        queued=0,
        output_tokens_per_second=0.0,
        shadow=counts,
    )
    return msgspec.json.encode(
        WorkerStats(
            worker_id=worker_id,
            at=time.time(),
            core_ready=True,
            applied_version=1,
            blocks_total=1,
            blocks_free=1,
            block_bytes=1,
            running=0,
            queued=0,
            prompt_tokens_per_second=0.0,
            output_tokens_per_second=0.0,
            num_preemptions=0,
            tenants=(use,),
        )
    )


def test_counts_of_workers_and_gateway_add_up(
    tenant: TenantView, make_worker: Callable[..., Any], actor: Actor
) -> None:
    """Of what is on trial now, with its value; what was counted for another value is not taken for this one."""
    change = {"shadow": {"max_running": 2, "rpm": 60, "kv_hard_bytes": 5}}
    policy = set_policy(tenant_id=tenant.id, expected_version=current(tenant).version, changes=change, actor=actor)
    with redis.Redis.from_url(settings.REDIS_URL) as store:
        for number in range(2):
            make_worker(f"trial-{number}")
            counts = (ShadowCount(limit="max_running", delayed=3, refused=number), ShadowCount(limit="rpm"))
            key = STATS_KEY.format(worker_id=f"trial-{number}")
            store.set(key, stats(f"trial-{number}", tenant.id, *counts), ex=60)
        store.hset(SHADOW_KEY.format(tenant_id=tenant.id), mapping={"rpm:60": 7, "rpm:30": 99})
    assert set(trials(tenant.id, policy)) == {
        ShadowReading(limit="max_running", value=2, refused=1, delayed=6),
        ShadowReading(limit="rpm", value=60, refused=7),
        ShadowReading(limit="kv_hard_bytes", value=5),
    }


def test_without_redis_nothing_is_counted(
    tenant: TenantView, make_worker: Callable[..., Any], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits on trial are told all the same."""
    gone = redis.Redis(host="127.0.0.1", port=1, socket_connect_timeout=0.2)
    monkeypatch.setattr("tenants.console.readings._redis", lambda: gone)
    make_worker("trial-2")
    version = current(tenant).version
    policy = set_policy(tenant_id=tenant.id, expected_version=version, changes={"shadow": {"tpm": 9}}, actor=actor)
    assert trials(tenant.id, policy) == (ShadowReading(limit="tpm", value=9),)
