"""A tenant's pages: who sees them, and what they show."""

from collections.abc import Callable

import msgspec
import pytest
import redis
from django.conf import settings
from django.test import Client

from tenants.contracts import TenantView, WorkerView
from tenants.models import User
from tenants.reports import STATS_KEY, TenantUse, WorkerStats

PAGES = ["/t/acme/", "/t/acme/headroom/", "/t/acme/keys/", "/t/acme/prefixes/"]
SPENDING = ["/t/acme/playground/", "/t/acme/keys/new/"]

MakeUser = Callable[..., User]


def signed_in(user: User) -> Client:
    """Return the user's client."""
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize("path", [*PAGES, *SPENDING])
def test_strangers_find_nothing(
    path: str, tenant: TenantView, make_tenant: Callable[..., TenantView], make_user: MakeUser
) -> None:
    """A member of another tenant gets the same 404 as for a tenant that never was."""
    stranger = signed_in(make_user("s@example.com", make_tenant("other"), "owner"))
    assert stranger.get(path).status_code == 404
    assert stranger.get(path.replace("acme", "nobody")).status_code == 404
    assert Client().get(path).headers["Location"].startswith("/sign-in/")


@pytest.mark.parametrize(
    ("role", "may_spend"), [("viewer", False), ("developer", True), ("admin", True), ("owner", True)]
)
def test_roles(role: str, may_spend: bool, tenant: TenantView, make_user: MakeUser) -> None:
    """Everybody in the tenant reads; a viewer neither makes keys nor spends in the playground."""
    client = signed_in(make_user("m@example.com", tenant, role))
    assert [client.get(path).status_code for path in PAGES] == [200] * len(PAGES)
    assert [client.get(path).status_code for path in SPENDING] == [200 if may_spend else 403] * len(SPENDING)
    assert ("Playground" in client.get("/t/acme/").content.decode()) == may_spend


def test_operator_sees_every_tenant(tenant: TenantView, make_user: MakeUser) -> None:
    """An operator stands above tenants."""
    assert signed_in(make_user("o@example.com", is_staff=True)).get("/t/acme/keys/").status_code == 200


def test_overview_without_a_worker(tenant: TenantView, make_user: MakeUser) -> None:
    """With nothing up, the overview says so instead of showing zeros as readings."""
    page = signed_in(make_user("m@example.com", tenant, "viewer")).get("/t/acme/").content.decode()
    assert "no reading from any worker" in page
    assert "No worker is up" in page


def test_playground_offers_what_is_served(
    tenant: TenantView, make_user: MakeUser, make_worker: Callable[..., WorkerView]
) -> None:
    """The playground lists the models of live workers, and dials as this tenant."""
    worker = make_worker()
    page = signed_in(make_user("m@example.com", tenant, "developer")).get("/t/acme/playground/").content.decode()
    assert f"<option>{worker.model}</option>" in page
    assert 'data-tenant="acme"' in page


def test_what_is_only_cached_is_headroom(
    tenant: TenantView, make_user: MakeUser, make_worker: Callable[..., WorkerView]
) -> None:
    """Cached KV counts in the bar, faded, and not as in use: it makes room for requests."""
    worker = make_worker()
    use = TenantUse(
        tenant_id=tenant.id,
        kv_bytes=96 << 20,
        kv_cached_bytes=64 << 20,
        kv_peak_bytes=0,
        running=1,
        queued=0,
        output_tokens_per_second=0.0,
    )
    stats = WorkerStats(
        worker_id=worker.worker_id,
        at=0.0,
        core_ready=True,
        applied_version=1,
        blocks_total=1 << 16,
        blocks_free=1 << 15,
        block_bytes=1 << 14,
        running=1,
        queued=0,
        prompt_tokens_per_second=0.0,
        output_tokens_per_second=0.0,
        num_preemptions=0,
        tenants=(use,),
    )
    key = STATS_KEY.format(worker_id=worker.worker_id)
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(key, msgspec.json.encode(stats), ex=30)
        page = signed_in(make_user("m@example.com", tenant, "viewer")).get("/t/acme/").content.decode()
        client.delete(key)
    assert "uses 96 MiB, of it 64 MiB only cached, soft limit 0 B, hard limit 256 MiB" in page
    assert f'title="{32 << 20:,} bytes">32<'.replace(",", "\u2009") in page  # in use
    assert f'title="{224 << 20:,} bytes">224<'.replace(",", "\u2009") in page  # headroom
