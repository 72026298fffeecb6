"""Pages that are open while their reader loses what they show: a part that asks for itself is never an error."""

from collections.abc import Callable

import pytest
from django.test import Client

from tenants.contracts import TenantView
from tenants.models import User
from tenants.services.members import remove_member, set_member
from tests.tenants.conftest import ACTOR

PART = {"HX-Request": "true"}

MakeUser = Callable[..., User]


@pytest.fixture
def owner(tenant: TenantView, make_user: MakeUser) -> User:
    """Return an owner of acme, who is not the only one."""
    make_user("other@example.com", tenant, "owner")
    return make_user("owner@example.com", tenant, "owner")


@pytest.fixture
def client(owner: User) -> Client:
    """Return the owner's browser."""
    client = Client()
    client.force_login(owner)
    return client


@pytest.mark.parametrize("path", ["headroom/", "prefixes/use/", "prefixes/list/", "prefixes/acks/1/"])
def test_a_page_leads_away_when_its_reader_is_no_member_any_more(
    path: str, client: Client, owner: User, tenant: TenantView
) -> None:
    """The part sends the page to where its reader may be, as for a tenant that never was; the page is a 404."""
    remove_member(tenant_id=tenant.id, user_id=owner.pk, by_role="owner", actor=ACTOR)
    for slug in ("acme", "nobody"):
        answer = client.get(f"/t/{slug}/{path}", headers=PART)
        assert (answer.status_code, answer.headers["HX-Redirect"], answer.content) == (200, "/", b"")
    assert client.get("/t/acme/").status_code == 404


def test_a_page_leads_to_the_sign_in_when_its_reader_is_signed_out(client: Client) -> None:
    """What asks for itself on a page whose session has ended takes the page to the sign-in."""
    client.logout()
    answer = client.get("/t/acme/headroom/", headers=PART)
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (200, "/sign-in/")


@pytest.mark.parametrize("path", ["keys/new/", "prefixes/new/", "prefixes/use/", "prefixes/acks/99999/"])
def test_a_page_is_read_again_when_a_part_of_it_is_gone_or_forbidden(
    path: str, client: Client, owner: User, tenant: TenantView
) -> None:
    """A right that was taken, a share group that was left, a version that never was: the page says how it is now."""
    set_member(tenant_id=tenant.id, email=owner.email, role="viewer", by_role="owner", actor=ACTOR)
    answer = client.get(f"/t/acme/{path}", headers=PART)
    assert (answer.status_code, answer.headers["HX-Refresh"], answer.content) == (200, "true", b"")
    assert client.get(f"/t/acme/{path}").status_code in (403, 404)
    assert client.get("/t/acme/").status_code == 200


def test_what_is_posted_is_refused_all_the_same(client: Client, owner: User, tenant: TenantView) -> None:
    """Only questions lead away: a write of one who may not write is a refusal, whatever script sent it."""
    set_member(tenant_id=tenant.id, email=owner.email, role="viewer", by_role="owner", actor=ACTOR)
    assert client.post("/t/acme/keys/new/", {"name": "n"}, headers=PART).status_code == 403
    remove_member(tenant_id=tenant.id, user_id=owner.pk, by_role="owner", actor=ACTOR)
    assert client.post("/t/acme/keys/new/", {"name": "n"}, headers=PART).status_code == 404
