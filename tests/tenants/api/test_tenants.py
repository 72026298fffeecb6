"""Tenants, projects, members and users over HTTP."""

from collections.abc import Callable
from typing import Any

from tenants import selectors
from tenants.contracts import TenantView
from tenants.models import AuditEvent, User


def test_an_operator_creates_and_reads_a_tenant(operator: Any) -> None:
    """With a policy of its own, and without the secret in any answer."""
    body = {"slug": "acme", "name": "Acme", "time_zone": "Europe/Berlin", "policy": {"kv_hard_bytes": 1 << 20}}
    made = operator.post("tenants/", body)
    assert made.status_code == 201
    assert made.json() == operator.get("tenants/acme/").json()
    assert set(made.json()) == {"id", "slug", "name", "colour", "time_zone", "status", "created_at"}
    assert operator.get("tenants/acme/policy/").json()["kv_hard_bytes"] == 1 << 20
    assert operator.post("tenants/", body).status_code == 409


def test_a_change_is_written_down_with_its_actor(tenant: TenantView, operator: Any) -> None:
    """The trail names the key that did it."""
    changed = operator.patch("tenants/acme/", {"name": "New", "status": "suspended"})
    assert (changed.status_code, changed.json()["name"], changed.json()["status"]) == (200, "New", "suspended")
    event = AuditEvent.objects.for_tenant(tenant.id).latest("id")
    assert (event.actor_kind, event.action) == ("key", "tenant.changed")
    assert event.actor_label.startswith("tests (")


def test_a_slug_does_not_change(tenant: TenantView, operator: Any) -> None:
    """It is no field of a change."""
    refused = operator.patch("tenants/acme/", {"slug": "other"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "slug")


def test_projects(tenant: TenantView, operator: Any) -> None:
    """Created, renamed, listed by name; a name is taken once."""
    made = operator.post("tenants/acme/projects/", {"name": "mobile"})
    assert made.status_code == 201
    path = f"tenants/acme/projects/{made.json()['id']}/"
    assert operator.patch(path, {"name": "app"}).json()["name"] == "app"
    assert [row["name"] for row in operator.get("tenants/acme/projects/").json()["data"]] == ["app", "default"]
    assert operator.patch(path, {"name": "default"}).status_code == 409
    assert (
        operator.patch("tenants/acme/projects/00000000-0000-0000-0000-000000000001/", {"name": "x"}).status_code == 404
    )


def test_members(tenant: TenantView, operator: Any, make_user: Callable[..., User]) -> None:
    """Added, changed, listed by e-mail, removed; the last owner stays."""
    owner = make_user("owner@example.com")
    assert operator.post("tenants/acme/members/", {"email": owner.email, "role": "owner"}).status_code == 200
    user = make_user("ada@example.com")
    assert (
        operator.post("tenants/acme/members/", {"email": "ADA@example.com", "role": "viewer"}).json()["role"]
        == "viewer"
    )
    listed = operator.get("tenants/acme/members/").json()["data"]
    assert [(row["email"], row["role"]) for row in listed] == [(user.email, "viewer"), (owner.email, "owner")]
    assert operator.delete(f"tenants/acme/members/{user.pk}/").status_code == 204
    assert operator.delete(f"tenants/acme/members/{user.pk}/").status_code == 404
    assert operator.delete(f"tenants/acme/members/{owner.pk}/").status_code == 409
    assert operator.delete(f"tenants/acme/members/{10**30}/").status_code == 404
    stranger = operator.post("tenants/acme/members/", {"email": "nobody@example.com", "role": "viewer"})
    assert (stranger.status_code, stranger.json()["error"]["param"]) == (400, "email")


def test_users(operator: Any) -> None:
    """An operator makes users; no answer holds a password."""
    body = {"email": "Ada@Example.com", "password": " correct horse 9 ", "name": "Ada"}
    made = operator.post("users/", body)
    assert made.status_code == 201
    assert set(made.json()) == {"id", "email", "name", "is_operator", "is_active", "date_joined"}
    user = User.objects.get(email="ada@example.com")
    assert user.check_password(" correct horse 9 ")
    assert selectors.tenants_of(user) == []
    assert [row["email"] for row in operator.get("users/").json()["data"]] == ["ada@example.com"]
    assert operator.post("users/", body).status_code == 409
    weak = operator.post("users/", body | {"email": "bob@example.com", "password": "short"})
    assert (weak.status_code, weak.json()["error"]["param"]) == (400, "password")
