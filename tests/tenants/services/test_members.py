"""Giving, changing and taking roles."""

from collections.abc import Callable
from typing import Any

import pytest

from tenants import selectors
from tenants.contracts import Actor, MemberView, TenantView
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import AuditEvent, User
from tenants.services.members import remove_member, set_member
from tenants.services.tenants import create_tenant

ACTOR = Actor("system", "tests", "tests")


def test_a_member_has_a_role_until_it_is_taken(
    tenant: TenantView, make_user: Callable[..., User], actor: Actor
) -> None:
    """Given, changed, taken: each is seen at once, and each is audited."""
    user = make_user("ada@example.com")
    assert selectors.role_of(user, tenant.id) is None
    set_member(tenant_id=tenant.id, email="Ada@Example.com", role="viewer", by_role="admin", actor=actor)
    assert selectors.role_of(user, tenant.id) == "viewer"
    set_member(tenant_id=tenant.id, email=user.email, role="developer", by_role="admin", actor=actor)
    set_member(tenant_id=tenant.id, email=user.email, role="developer", by_role="admin", actor=actor)
    assert [(member.email, member.role) for member in selectors.members(tenant.id)] == [(user.email, "developer")]
    assert [seen.slug for seen in selectors.tenants_of(user)] == ["acme"]
    remove_member(tenant_id=tenant.id, user_id=user.pk, by_role="admin", actor=actor)
    assert selectors.role_of(user, tenant.id) is None
    assert selectors.tenants_of(user) == []
    actions = AuditEvent.objects.for_tenant(tenant.id).filter(target_id=user.email).order_by("id")
    assert [event.action for event in actions] == ["member.set", "member.set", "member.removed"]


def test_an_operator_stands_above_tenants_while_active(
    make_tenant: Callable[..., TenantView], make_user: Callable[..., User]
) -> None:
    """An operator needs no membership, and loses everything with `is_active`."""
    tenant = make_tenant("one")
    make_tenant("two")
    boss = make_user("boss@example.com", is_staff=True)
    assert selectors.role_of(boss, tenant.id) == "operator"
    assert [seen.slug for seen in selectors.tenants_of(boss)] == ["one", "two"]
    boss.is_active = False
    assert selectors.role_of(boss, tenant.id) is None


@pytest.mark.parametrize(
    ("old", "new", "by_role", "is_allowed"),
    [
        ("viewer", "admin", "admin", True),
        ("viewer", "owner", "admin", False),
        ("owner", "viewer", "admin", False),
        ("owner", "", "admin", False),
        ("viewer", "owner", "owner", True),
        ("owner", "viewer", "owner", True),
        ("owner", "", "operator", True),
        ("viewer", "developer", "developer", False),
        ("viewer", "", "viewer", False),
    ],
)
def test_roles_reach_as_far_as_they_say(
    tenant: TenantView,
    make_user: Callable[..., User],
    actor: Actor,
    *,
    old: str,
    new: str,
    by_role: str,
    is_allowed: bool,
) -> None:
    """Admins move everybody below the owner role, owners and operators everybody."""
    make_user("first@example.com", tenant, "owner")
    user = make_user("ada@example.com", tenant, old)

    def change() -> None:
        if new:
            set_member(tenant_id=tenant.id, email=user.email, role=new, by_role=by_role, actor=actor)
        else:
            remove_member(tenant_id=tenant.id, user_id=user.pk, by_role=by_role, actor=actor)

    if is_allowed:
        change()
        assert selectors.role_of(user, tenant.id) == (new or None)
    else:
        with pytest.raises(Forbidden):
            change()
        assert selectors.role_of(user, tenant.id) == old


def test_the_last_owner_stays(tenant: TenantView, make_user: Callable[..., User], actor: Actor) -> None:
    """A tenant never loses its only owner, also not to the owner's own wish."""
    owner = make_user("ada@example.com", tenant, "owner")
    with pytest.raises(Conflict, match="only owner"):
        remove_member(tenant_id=tenant.id, user_id=owner.pk, by_role="operator", actor=actor)
    with pytest.raises(Conflict, match="only owner"):
        set_member(tenant_id=tenant.id, email=owner.email, role="viewer", by_role="owner", actor=actor)


@pytest.mark.django_db(transaction=True)
def test_two_owners_cannot_remove_each_other_at_once(in_threads: Callable[..., list[Any]]) -> None:
    """The race leaves one owner."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    users = [User.objects.create_user(f"{name}@example.com") for name in ("ada", "bob")]
    for user in users:
        set_member(tenant_id=tenant.id, email=user.email, role="owner", by_role="operator", actor=ACTOR)

    def remove(user: User) -> Callable[[], None]:
        return lambda: remove_member(tenant_id=tenant.id, user_id=user.pk, by_role="owner", actor=ACTOR)

    results = in_threads(*(remove(user) for user in users))
    assert sum(isinstance(result, Conflict) for result in results) == 1
    assert len(selectors.members(tenant.id)) == 1


@pytest.mark.django_db(transaction=True)
def test_one_user_added_twice_at_once_is_one_member(in_threads: Callable[..., list[Any]]) -> None:
    """Two admins add the same person: no database error reaches anybody."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    User.objects.create_user("ada@example.com")

    def add() -> MemberView:
        return set_member(tenant_id=tenant.id, email="ada@example.com", role="viewer", by_role="admin", actor=ACTOR)

    results = in_threads(add, add, add)
    assert all(isinstance(result, MemberView) for result in results)
    assert len(selectors.members(tenant.id)) == 1


def test_wrong_values_are_named(tenant: TenantView, make_user: Callable[..., User], actor: Actor) -> None:
    """An unknown role, a stranger's e-mail, a user who may not sign in, a member who is none."""
    make_user("gone@example.com", is_active=False)
    for email, role, field in (
        ("ada@example.com", "king", "role"),
        ("nobody@example.com", "viewer", "email"),
        ("gone@example.com", "viewer", "email"),
    ):
        with pytest.raises(Invalid) as caught:
            set_member(tenant_id=tenant.id, email=email, role=role, by_role="owner", actor=actor)
        assert caught.value.field == field
    with pytest.raises(NotFound):
        remove_member(tenant_id=tenant.id, user_id=10**9, by_role="owner", actor=actor)
