"""`/admin/`: operators look at the tables, in their own console session."""

from collections.abc import Callable

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import resolve

from tenants.models import User


def test_an_operator_looks(operator: User, signed_in: Callable[[User], Client]) -> None:
    """The index and a table open under the pages' content policy; nothing there leads to a form that writes."""
    client = signed_in(operator)
    index = client.get("/admin/")
    assert index.status_code == 200
    assert "script-src 'self'" in index["Content-Security-Policy"]
    text = index.content.decode()
    assert "/admin/tenants/apikey/" in text
    assert "password_change" not in text
    assert "/add/" not in text
    assert client.get("/admin/tenants/apikey/").status_code == 200
    for path in ("password_change/", "password_change/done/", "tenants/apikey/add/"):
        assert client.get(f"/admin/{path}").status_code in (403, 404), path


def test_only_our_tables_are_there() -> None:
    """Other applications' tables have forms that write past our services, for a superuser at least."""
    resolve("/admin/")
    assert {model._meta.app_label for model in admin.site._registry} == {"tenants"}


def test_signing_in_is_the_consoles(client: Client) -> None:
    """There is no second form, on which wrong tries would not count."""
    answer = client.get("/admin/", follow=True)
    assert answer.redirect_chain[-1][0].startswith("/sign-in/?next=")
    assert client.post("/admin/login/", {"username": "a@example.com", "password": "x"}).status_code == 405


@pytest.mark.parametrize("role", ["owner", "viewer"])
def test_to_a_member_it_is_not_there(
    member: Callable[[str], User], signed_in: Callable[[User], Client], role: str
) -> None:
    """As with all pages of the operator, and without a loop of redirects."""
    answer = signed_in(member(role)).get("/admin/tenants/apikey/", follow=True)
    assert answer.status_code == 404
