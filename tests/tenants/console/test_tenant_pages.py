"""A tenant's pages: who sees them, and what they show."""

from collections.abc import Callable

import pytest
from django.test import Client

from tenants.contracts import TenantView, WorkerView
from tenants.models import User

PAGES = ["/t/acme/", "/t/acme/headroom/", "/t/acme/keys/"]
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
