"""The way in."""

from collections.abc import Callable

from django.test import Client

from tenants.models import User


def test_member_lands_on_the_tenant(member: Callable[[str], User], signed_in: Callable[[User], Client]) -> None:
    """A member starts at their tenant's overview."""
    assert signed_in(member("viewer")).get("/").headers["Location"] == "/t/acme/"


def test_nobody_yet(db: None, signed_in: Callable[[User], Client]) -> None:
    """A user without a tenant is told how to become a member, by name."""
    user = User.objects.create_user("new@example.com")
    answer = signed_in(user).get("/")
    assert answer.status_code == 200
    assert "adds you as new@example.com" in answer.content.decode()
