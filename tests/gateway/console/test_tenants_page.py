"""The operator's tenants."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
import redis
from django.conf import settings
from django.test import Client
from django.utils import timezone

from tenants import selectors
from tenants.console import readings
from tenants.contracts import Actor, TenantView
from tenants.models import User
from tenants.reports import STATS_KEY, TenantUse, WorkerStats
from tenants.services.boosts import start_boost
from tenants.services.policy import set_policy
from tenants.services.workers import set_draining
from tests.gateway.console.conftest import ACTOR

OPERATOR_PAGES = [
    "/operator/tenants/",
    "/operator/tenants/fleet/",
    "/operator/tenants/acme/policy/",
    "/operator/tenants/acme/policy/acks/1/",
    "/operator/tenants/acme/policy/history/",
    "/operator/tenants/acme/policy/revert/1/",
    "/operator/tenants/acme/policy/boost/",
    "/operator/tenants/acme/policy/boost/new/",
]


@pytest.mark.parametrize("path", OPERATOR_PAGES)
def test_operators_only(
    path: str, tenant: TenantView, member: Callable[[str], User], signed_in: Callable[[User], Client]
) -> None:
    """To an owner of a tenant the operator's pages are not there; a signed-out reader is asked to sign in."""
    assert signed_in(member("owner")).get(path).status_code == 404
    assert Client().get(path).headers["Location"].startswith("/sign-in/?next=")


def test_signed_out_swap_takes_the_page_to_sign_in(tenant: TenantView) -> None:
    """A part that htmx fetches after the session has ended takes the whole page along."""
    answer = Client().get("/operator/tenants/fleet/", headers={"HX-Request": "true"})
    assert answer.headers["HX-Redirect"] == "/sign-in/"


def test_use_against_soft_and_hard(
    operator: User, tenant: TenantView, worker: str, signed_in: Callable[[User], Client]
) -> None:
    """A tenant's use, its guarantee and its ceiling are drawn from the worker's last statistics."""
    use = TenantUse(
        tenant_id=tenant.id, kv_bytes=128 << 20, kv_peak_bytes=0, running=3, queued=2, output_tokens_per_second=41.25
    )
    stats = WorkerStats(
        worker_id=worker,
        at=0.0,
        core_ready=True,
        applied_version=1,
        blocks_total=1 << 14,
        blocks_free=(1 << 14) - 2048,
        block_bytes=1 << 16,
        running=3,
        queued=2,
        prompt_tokens_per_second=0.0,
        output_tokens_per_second=41.25,
        num_preemptions=0,
        tenants=(use,),
    )
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(STATS_KEY.format(worker_id=worker), msgspec.json.encode(stats), ex=30)
    page = signed_in(operator).get("/operator/tenants/").content.decode()
    assert "uses 128 MiB, soft limit 64 MiB, hard limit 256 MiB" in page
    assert '<rect class="used" y="6" height="10" x="0%" width="25.0%" />' in page  # guaranteed
    assert '<rect class="borrowed" y="6" height="10" x="25.0%" width="25.0%" />' in page
    assert 'data-field="rate">41.3<span class="unit">tok/s</span>' in page


def test_worker_without_a_reading(
    operator: User, tenant: TenantView, worker: str, signed_in: Callable[[User], Client]
) -> None:
    """A live worker that said nothing is counted as such, not shown as idle."""
    page = signed_in(operator).get("/operator/tenants/").content.decode()
    assert "1 of 1 without a reading" in page
    assert 'title="no reading" data-field="kv">–<' in page


def test_redis_away(
    operator: User,
    tenant: TenantView,
    worker: str,
    signed_in: Callable[[User], Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While Redis is away the page still comes, with the limits, and says that it has no readings."""
    away = redis.Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.2)
    monkeypatch.setattr(readings, "_redis", lambda: away)
    answer = signed_in(operator).get("/operator/tenants/")
    assert answer.status_code == 200
    assert "1 of 1 without a reading" in answer.content.decode()
    assert "hard limit 256 MiB" in answer.content.decode()


def test_a_draining_worker_says_so(operator: User, worker: str, signed_in: Callable[[User], Client]) -> None:
    """The panel of the fleet names it as draining for as long as an operator lets it drain."""
    client = signed_in(operator)
    for draining in (True, False):
        set_draining(worker_id=worker, draining=draining, actor=Actor("system", "tests", "tests"))
        assert ("draining: takes no new requests" in client.get("/operator/tenants/").content.decode()) is draining


def test_nothing_yet(operator: User, signed_in: Callable[[User], Client]) -> None:
    """Without tenants and workers the page says what will be here."""
    page = signed_in(operator).get("/operator/tenants/").content.decode()
    assert "No tenants yet" in page
    assert "no worker is up" in page


@pytest.mark.parametrize(
    "sort", ["tenant", "use", "borrowed", "host", "running", "waiting", "rate", "above", "nonsense", "<script>"]
)
def test_sorts(sort: str, operator: User, tenant: TenantView, signed_in: Callable[[User], Client]) -> None:
    """Each order has a URL; an unknown one is the order by name, and comes back nowhere."""
    answer = signed_in(operator).get("/operator/tenants/", {"sort": sort})
    assert answer.status_code == 200
    assert "<script>alert" not in answer.content.decode()
    assert ('aria-sort="ascending"' in answer.content.decode()) == (sort in ("tenant", "nonsense", "<script>"))


def test_worker_is_drained_and_taken_back(operator: User, worker: str, signed_in: Callable[[User], Client]) -> None:
    """One button lets a worker drain, the next lets it take requests again; the panel comes back either way."""
    client, url = signed_in(operator), f"/operator/workers/{worker}/drain/"
    assert "Take requests again" in client.post(url, {"draining": "on"}).content.decode()
    assert [one.draining for one in selectors.live_workers()] == [True]
    assert "takes requests" in client.post(url).content.decode()
    assert [one.draining for one in selectors.live_workers()] == [False]
    assert client.post("/operator/workers/nobody/drain/").status_code == 404


def test_boosts_and_trials_are_marked(operator: User, tenant: TenantView, signed_in: Callable[[User], Client]) -> None:
    """A tenant with other limits for a time, or with limits on trial, says so in its row."""
    client = signed_in(operator)
    page = client.get("/operator/tenants/").content.decode()
    assert "boost" not in page
    assert "◌ trial" not in page
    policy = selectors.policy(tenant.id)
    assert policy is not None
    saved = set_policy(
        tenant_id=tenant.id, expected_version=policy.version, changes={"shadow": {"rpm": 1}}, actor=ACTOR
    )
    start_boost(
        tenant_id=tenant.id,
        expected_version=saved.version,
        changes={"max_running": 64},
        ends_at=timezone.now() + timedelta(hours=1),
        reason="A launch",
        actor=ACTOR,
    )
    page = client.get("/operator/tenants/").content.decode()
    assert "▲ boost" in page
    assert "◌ trial" in page
