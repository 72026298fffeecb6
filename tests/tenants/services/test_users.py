"""Creating users."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import authenticate

from tenants.contracts import Actor
from tenants.errors import Conflict, Invalid
from tenants.models import AuditEvent, User
from tenants.services.users import create_user


def test_a_user_signs_in_by_email_in_any_case(db: None, actor: Actor) -> None:
    """The e-mail is the name, the password is not in the trail."""
    user = create_user(email="Ada@Example.com", password="correct horse 9", actor=actor)
    assert authenticate(username="ADA@example.COM", password="correct horse 9") == user
    assert authenticate(username="ada@example.com", password="wrong") is None
    assert not user.is_staff
    (event,) = AuditEvent.objects.across_tenants().filter(action="user.created")
    assert "horse" not in str(event.after)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("email", {"email": "nonsense"}),
        ("email", {"email": "a\0@example.com"}),
        ("password", {"password": "short"}),
        ("password", {"password": "password1234"[:8]}),
        ("password", {"password": "x" * 300}),
        ("name", {"name": "x" * 151}),
    ],
)
def test_a_wrong_value_is_named(db: None, actor: Actor, field: str, values: dict[str, Any]) -> None:
    """Nobody is made of a wrong request."""
    with pytest.raises(Invalid) as caught:
        create_user(**{"email": "ada@example.com", "password": "correct horse 9", "actor": actor, **values})
    assert caught.value.field == field
    assert not User.objects.exists()


def test_an_email_is_taken_once(db: None, actor: Actor) -> None:
    """The second user of an e-mail is refused."""
    create_user(email="ada@example.com", password="correct horse 9", actor=actor)
    assert AuditEvent.objects.across_tenants().count() == 1
    with pytest.raises(Conflict, match=r"ada@example\.com"):
        create_user(email="ADA@example.com", password="correct horse 9", actor=actor)


@pytest.mark.django_db(transaction=True)
def test_of_two_users_of_one_email_at_once_one_is_made(in_threads: Callable[..., list[Any]]) -> None:
    """The race ends in a conflict, never in a database error."""
    actor = Actor("system", "tests", "tests")

    def make() -> User:
        return create_user(email="ada@example.com", password="correct horse 9", actor=actor)

    results = in_threads(make, make, make)
    assert sum(isinstance(result, User) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 2
    assert AuditEvent.objects.across_tenants().count() == 1
