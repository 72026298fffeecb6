"""Operators' pages that are open while what they show ends: a part that asks for itself is never an error."""

from collections.abc import Callable

import pytest
from django.test import Client

from tenants.contracts import TenantView
from tenants.models import User

PART = {"HX-Request": "true"}
PAGE = "/operator/tenants/acme/policy/"


@pytest.fixture
def console(operator: User) -> Client:
    """Return the operator's browser."""
    client = Client()
    client.force_login(operator)
    return client


@pytest.mark.usefixtures("tenant")
@pytest.mark.parametrize(
    "path", [PAGE + "boost/", PAGE + "history/", PAGE + "?part=editor", "/operator/tenants/fleet/"]
)
def test_a_page_leads_away_when_its_reader_is_no_operator_any_more(path: str, console: Client, operator: User) -> None:
    """The part sends the page home; the page itself is not there for anybody else."""
    assert console.get(path, headers=PART).status_code == 200
    User.objects.filter(pk=operator.pk).update(is_staff=False)
    answer = console.get(path, headers=PART)
    assert (answer.status_code, answer.headers["HX-Redirect"], answer.content) == (200, "/", b"")
    assert console.get(path).status_code == 404
    assert console.post(PAGE + "effect/", {}, headers=PART).status_code == 404


def test_a_page_leads_to_the_sign_in_when_its_reader_is_signed_out(console: Client, tenant: TenantView) -> None:
    """What asks for itself on a page whose session has ended takes the page to the sign-in."""
    console.logout()
    answer = console.get(f"{PAGE}boost/", headers=PART)
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (200, "/sign-in/")


@pytest.mark.parametrize("path", ["acks/99999/", "revert/99999/", "history/?before=nowhere"])
def test_a_page_is_read_again_when_a_part_of_it_is_gone(path: str, console: Client, tenant: TenantView) -> None:
    """A version that was swept: the page says how it is now."""
    answer = console.get(PAGE + path, headers=PART)
    assert (answer.status_code, answer.headers["HX-Refresh"], answer.content) == (200, "true", b"")
    assert console.get(PAGE + path).status_code == 404
    assert console.get(PAGE).status_code == 200


def test_the_first_of_an_owners_pages_is_where_they_are_led(member: Callable[[str], User]) -> None:
    """Home knows a page for everybody who is signed in."""
    client = Client()
    client.force_login(member("owner"))
    assert client.get("/", follow=True).status_code == 200
