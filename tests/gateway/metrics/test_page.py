"""`/metrics`: who may read it, and in which form it comes."""

import uuid
from collections.abc import Callable, Iterator

import msgspec
import pytest
import redis
from django.conf import settings
from django.test import Client

from gateway.metrics.requests import of_process
from tenants.contracts import Actor, TenantView, WorkerAnnouncement
from tenants.models import User
from tenants.reports import STATS_KEY
from tenants.services.keys import create_management_key
from tenants.services.tenants import create_tenant
from tenants.services.workers import announce
from tests.gateway.metrics.test_workers import stats, use

ACTOR = Actor("system", "tests", "tests")
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.fixture
def tenant(db: None) -> TenantView:
    """Return a tenant."""
    return create_tenant(slug=f"acme-{uuid.uuid4().hex[:8]}", name="Acme", actor=ACTOR)


@pytest.fixture
def key(db: None) -> Callable[[str], str]:
    """Return a maker of management keys' headers by role."""

    def make(role: str, tenant_id: str = "") -> str:
        made = create_management_key(name="tests", role=role, tenant_id=tenant_id or None, actor=ACTOR)
        return f"Bearer {made.secret}"

    return make


@pytest.fixture
def worker(tenant: TenantView) -> Iterator[str]:
    """Announce a worker whose last statistics are in Redis, and return its id."""
    card = WorkerAnnouncement(
        worker_id=f"worker-{uuid.uuid4()}",
        address="unix:/nowhere",
        model="tiny",
        digest="",
        kv_bytes=1 << 30,
        block_bytes=1 << 16,
        max_context=2048,
    )
    name = announce(announcement=card).worker_id
    told = stats(name, tenants=(use(tenant.id, kv_bytes=4711),))
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(STATS_KEY.format(worker_id=name), msgspec.json.encode(told), ex=600)
        yield name
        client.delete(STATS_KEY.format(worker_id=name))


def test_a_scrape(tenant: TenantView, worker: str, key: Callable[[str], str]) -> None:
    """An operator's key reads requests and workers, under Prometheus's own Accept header and under none."""
    of_process().watch(tenant.slug, "tiny").left()
    for accept, kind in ((OPENMETRICS, "application/openmetrics-text"), ("", "text/plain")):
        answer = Client().get("/metrics", headers={"Authorization": key("operator"), "Accept": accept})
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith(kind)
        text = answer.content.decode()
        assert f'tollgate_requests_total{{model="tiny",outcome="cancelled",tenant="{tenant.slug}"}} 1.0' in text
        assert f'tollgate_tenant_kv_bytes{{tenant="{tenant.slug}",worker="{worker}"}} 4711.0' in text


def test_operators_only(tenant: TenantView, key: Callable[..., str]) -> None:
    """Nobody else reads it: what tenants use is not for each other, nor for strangers."""
    assert Client().get("/metrics").status_code == 401
    owner = Client().get("/metrics", headers={"Authorization": key("owner", tenant.id)})
    assert owner.status_code == 403
    assert owner.json()["error"]["message"] == "Only operators may do this."


def test_an_operators_browser_may_look(operator: User) -> None:
    """A session does, too."""
    client = Client()
    client.force_login(operator)
    assert client.get("/metrics", headers={"Accept": "text/html"}).status_code == 200


@pytest.fixture
def operator(db: None) -> User:
    """Return an operator."""
    return User.objects.create_user("metrics@example.com", "a long enough password", is_staff=True)
