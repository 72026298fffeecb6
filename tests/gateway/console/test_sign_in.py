"""Signing in by e-mail, and out."""

import uuid

import pytest
from django.test import Client

from gateway.console.attempts import PAIR
from tenants.models import User
from tests.gateway.console.conftest import PASSWORD


def post(client: Client, email: str, password: str, **more: str) -> int:
    """Send the form and return the answer's status."""
    return client.post("/sign-in/", {"email": email, "password": password, **more}).status_code


@pytest.fixture
def client() -> Client:
    """Return a client at an address of its own: failures are counted by address, and tests share one Redis."""
    return Client(REMOTE_ADDR=f"2001:db8::{uuid.uuid4().hex[:4]}:{uuid.uuid4().hex[:4]}")


def test_e_mail_in_any_case(client: Client, operator: User) -> None:
    """An e-mail signs in whatever its case, and the operator lands on the tenants."""
    answer = client.post("/sign-in/", {"email": "Operator@Example.com", "password": PASSWORD}, follow=True)
    assert answer.redirect_chain[-1][0] == "/operator/tenants/"


@pytest.mark.parametrize("next_url", ["https://evil.example/", "//evil.example", "javascript:alert(1)"])
def test_next_stays_on_this_host(client: Client, operator: User, next_url: str) -> None:
    """Nobody is sent to another site by a crafted link."""
    answer = client.post("/sign-in/", {"email": operator.email, "password": PASSWORD, "next": next_url})
    assert answer.headers["Location"] == "/"


def test_next_is_kept(client: Client, operator: User) -> None:
    """A signed-out reader comes back to the page that they asked for."""
    asked = client.get("/operator/tenants/?sort=use")
    assert asked.headers["Location"] == "/sign-in/?next=/operator/tenants/%3Fsort%3Duse"
    form = client.get(asked.headers["Location"])
    assert 'name="next" value="/operator/tenants/?sort=use"' in form.content.decode()


def test_wrong_password_and_unknown_e_mail_read_the_same(client: Client, operator: User) -> None:
    """The answer does not tell who has an account."""
    wrong = client.post("/sign-in/", {"email": operator.email, "password": "wrong"}).content.decode()
    unknown = client.post("/sign-in/", {"email": "nobody@example.com", "password": "wrong"}).content.decode()
    assert "do not match" in wrong
    assert "do not match" in unknown


def test_guessing_is_stopped(client: Client, operator: User) -> None:
    """After a few failures even the right password waits, from this address; others are not locked out."""
    for _ in range(PAIR.most):
        assert post(client, operator.email, "wrong") == 422
    assert post(client, operator.email, PASSWORD) == 429
    elsewhere = Client(REMOTE_ADDR=f"2001:db8:1::{uuid.uuid4().hex[:4]}")
    assert post(elsewhere, operator.email, PASSWORD) == 302


def test_success_forgets_failures(client: Client, operator: User) -> None:
    """One who mistypes now and then is never locked out."""
    for _ in range(3):
        for _ in range(PAIR.most - 1):
            assert post(client, operator.email, "wrong") == 422
        assert post(client, operator.email, PASSWORD) == 302
        client.post("/sign-out/")


def test_inactive_user_stays_out(client: Client, operator: User) -> None:
    """A deactivated account does not sign in."""
    User.objects.filter(pk=operator.pk).update(is_active=False)
    assert post(client, operator.email, PASSWORD) == 422


def test_sign_out_takes_a_post(client: Client, operator: User) -> None:
    """A mere link (an image on another site) signs nobody out; the button does."""
    client.force_login(operator)
    assert client.get("/sign-out/").status_code == 405
    assert client.get("/operator/tenants/").status_code == 200
    client.post("/sign-out/")
    assert client.get("/operator/tenants/").status_code == 302


def test_forms_need_the_csrf_token(operator: User) -> None:
    """A form posted without its token changes nothing."""
    strict = Client(enforce_csrf_checks=True)
    answer = strict.post("/sign-in/", {"email": operator.email, "password": PASSWORD})
    assert answer.status_code == 403
    assert "expired" in answer.content.decode()
