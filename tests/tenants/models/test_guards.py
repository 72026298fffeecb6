"""What the database itself refuses."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from tenants.contracts import Actor, TenantView
from tenants.models import (
    AuditEvent,
    ManagementKey,
    Membership,
    Policy,
    PolicyCounter,
    PolicyVersion,
    SharedPrefix,
    ShareGroup,
    Tenant,
    User,
)
from tenants.services.policy import set_policy
from tenants.services.prefixes import register_prefix
from tenants.services.share_groups import create_share_group, remove_share_group
from tenants.services.tenants import create_tenant, update_tenant

ACTOR = Actor("system", "tests", "tests")


@pytest.mark.parametrize(
    "values",
    [
        {"kv_soft_bytes": 2, "kv_hard_bytes": 1},
        {"kv_soft_bytes": -1},
        {"kv_hard_bytes": 0},
        {"weight": 0.0},
        {"weight": float("nan")},
        {"max_running": 0},
        {"max_context": 0},
        {"priority": "urgent"},
        {"version": 0},
    ],
    ids=str,
)
def test_a_policy_that_breaks_a_rule_cannot_be_stored(tenant: TenantView, values: dict[str, Any]) -> None:
    """The constraints hold for code that goes around the services."""
    with pytest.raises(IntegrityError), transaction.atomic():
        Policy.objects.for_tenant(tenant.id).update(**values)


def test_a_slug_cannot_change(tenant: TenantView) -> None:
    """The slug is in URLs and in people's scripts."""
    with pytest.raises(IntegrityError, match="not allowed"), transaction.atomic():
        Tenant.objects.filter(pk=tenant.id).update(slug="other")
    Tenant.objects.filter(pk=tenant.id).update(name="Other")


@pytest.mark.parametrize("slug", ["", "A", "a_b", "-a", "a-", "a" * 41, "a b", "ä", "a\n"])
def test_a_slug_has_its_form(db: None, slug: str) -> None:
    """Nothing else than the documented form gets in."""
    with pytest.raises((IntegrityError, Exception), match=r"slug|value too long"), transaction.atomic():
        Tenant.objects.create(slug=slug, name="x", colour=0)


def test_a_tenant_secret_has_32_bytes(db: None) -> None:
    """A short secret would make the namespace guessable."""
    with pytest.raises(IntegrityError, match="secret"), transaction.atomic():
        Tenant.objects.create(slug="x", name="x", colour=0, secret=b"short")


def test_the_audit_trail_is_append_only(tenant: TenantView, actor: Actor) -> None:
    """Neither a change nor a deletion of an audit row passes."""
    update_tenant(tenant_id=tenant.id, changes={"name": "New"}, actor=actor)
    events = AuditEvent.objects.for_tenant(tenant.id)
    with pytest.raises(IntegrityError, match="not allowed"), transaction.atomic():
        events.update(actor_label="somebody else")
    with pytest.raises(IntegrityError, match="not allowed"), transaction.atomic():
        events.delete()
    assert events.count() == 2


def test_an_email_is_one_person_in_any_case(db: None) -> None:
    """Ada@ and ada@ are the same user, also for code that goes around the manager."""
    User.objects.create_user("Ada@Example.com")
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.create_user("ADA@example.COM")
    with pytest.raises(IntegrityError, match="lower"), transaction.atomic():
        User.objects.create(email="Bob@example.com")
    assert User.objects.get_by_natural_key(" ADA@EXAMPLE.COM").email == "ada@example.com"


def test_there_is_one_counter(tenant: TenantView) -> None:
    """A second counter would hand out versions twice."""
    with pytest.raises(IntegrityError), transaction.atomic():
        PolicyCounter.objects.create(id=2, value=0)


def test_an_operators_key_has_no_tenant_and_every_other_has(tenant: TenantView) -> None:
    """A `tg_adm_` key without a tenant would be a fleet key by mistake."""
    for role, tenant_id in (("operator", tenant.id), ("admin", None), ("owner", None), ("viewer", tenant.id)):
        with pytest.raises(IntegrityError, match="role_fits"), transaction.atomic():
            ManagementKey.objects.across_tenants().create(
                id="k", name="k", digest="d", scopes=[], role=role, tenant_id=tenant_id
            )


def test_a_member_has_one_known_role(tenant: TenantView, make_user: Callable[..., User]) -> None:
    """One role a person and tenant, of the four."""
    user = make_user("ada@example.com", tenant, "viewer")
    with pytest.raises(IntegrityError, match="unique"), transaction.atomic():
        Membership.objects.for_tenant(tenant.id).create(user=user, role="admin")
    with pytest.raises(IntegrityError, match="known"), transaction.atomic():
        Membership.objects.for_tenant(tenant.id).update(role="king")


@pytest.fixture
def group(db: None) -> str:
    """Return the name of a share group."""
    return create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1 << 20, actor=ACTOR).name


@pytest.mark.parametrize(
    "values",
    [
        {"kv_soft_bytes": 2, "kv_hard_bytes": 1},
        {"kv_soft_bytes": -1},
        {"kv_hard_bytes": 0},
        {"secret": b"short"},
        {"secret": b""},
        {"version": 0},
        {"name": "No slug"},
        {"removed": True},
        {"removed": True, "secret": b""},
        {"removed": True, "kv_hard_bytes": 0},
    ],
    ids=str,
)
def test_a_share_group_that_breaks_a_rule_cannot_be_stored(group: str, values: dict[str, Any]) -> None:
    """A live one has limits and a whole secret; a removed one has neither left."""
    with pytest.raises(IntegrityError, match="share_group_"), transaction.atomic():
        ShareGroup.objects.filter(name=group).update(**values)
    ShareGroup.objects.filter(name=group).update(removed=True, secret=b"", kv_hard_bytes=0)


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("messages_or_text", {"text": ""}),
        ("messages_or_text", {"messages": [{"role": "user", "content": "x"}]}),
        ("few_messages", {"text": "", "messages": [{"role": "user", "content": "x"}] * 65}),
        ("text_size", {"text": "é" * (129 << 10)}),
        ("prefix_size", {"num_bytes": 0}),
        ("prefix_size", {"num_bytes": (256 << 10) + 1}),
        ("name_unique", {"name": "other"}),
    ],
)
def test_a_prefix_that_breaks_a_rule_cannot_be_stored(group: str, constraint: str, values: dict[str, Any]) -> None:
    """Exactly one kind of contents, within their sizes, under a name of its own."""
    made = [register_prefix(group=group, name=name, text="x", actor=ACTOR).id for name in ("one", "other")]
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        SharedPrefix.objects.for_group(group).filter(pk=made[0]).update(**values)


def test_a_policy_names_a_live_group_alone(group: str, tenant: TenantView, actor: Actor) -> None:
    """Neither an unknown nor a removed one gets in, and a named one neither goes nor is deleted."""
    policies, groups = Policy.objects.for_tenant(tenant.id), ShareGroup.objects.filter(name=group)
    with pytest.raises(IntegrityError, match="there is no share group nowhere"), transaction.atomic():
        policies.update(share_group="nowhere")
    policies.update(share_group=group)
    with pytest.raises(IntegrityError, match="policies name"), transaction.atomic():
        groups.update(removed=True, secret=b"", kv_hard_bytes=0)
    with pytest.raises(IntegrityError, match="policies name"), transaction.atomic():
        groups.delete()
    policies.update(share_group="")
    remove_share_group(name=group, actor=actor)
    with pytest.raises(IntegrityError, match="there is no share group docs"), transaction.atomic():
        policies.update(share_group=group)


@pytest.mark.django_db(transaction=True)
def test_a_policy_and_a_removal_cannot_pass_each_other(in_threads: Callable[..., list[Any]]) -> None:
    """Of two writers that go around the services and their counter, one is refused: no policy names what is gone."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    policies, groups = Policy.objects.for_tenant(tenant.id), ShareGroup.objects.filter(name="docs")
    for _ in range(5):
        create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=ACTOR)
        results = in_threads(
            lambda: policies.update(share_group="docs"),
            lambda: groups.update(removed=True, secret=b"", kv_hard_bytes=0),
        )
        assert {type(result) for result in results} == {int, IntegrityError}
        named, is_removed = policies.get().share_group, groups.get().removed
        assert (named, is_removed) in (("docs", False), ("", True))
        if named:
            remove_share_group(name="docs", actor=ACTOR, detach=True)


def test_a_version_is_a_tenants_or_a_groups(group: str, tenant: TenantView) -> None:
    """A version of nobody's, or of two, could not be followed to its acks."""
    versions = PolicyVersion.objects.across_tenants()
    for tenant_id, name in ((None, ""), (tenant.id, group)):
        with pytest.raises(IntegrityError, match="policy_version_owner"), transaction.atomic():
            versions.filter(share_group=group).update(tenant_id=tenant_id, share_group=name)


def test_models_and_migrations_agree(db: None) -> None:
    """There is no change of a model without its migration."""
    call_command("makemigrations", "--check", "--dry-run", stdout=StringIO())


@pytest.mark.django_db(transaction=True)
def test_migrations_are_named_and_reversible() -> None:
    """Back to nothing and forward again leaves a database that works."""
    call_command("migrate", "tenants", "0002", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_proc WHERE proname LIKE 'tenants%group%' OR proname LIKE '%named%'")
        assert cursor.fetchone() == (0,)
    call_command("migrate", "tenants", "0001", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'audit_append%' OR tgname LIKE 'tenant_slug%'"
        )
        assert cursor.fetchone() == (0,)
    call_command("migrate", "tenants", "zero", verbosity=0)
    assert not [name for name in connection.introspection.table_names() if name.startswith("tenants_")]
    call_command("migrate", verbosity=0)
    assert "tenants_usagerecord" in connection.introspection.table_names()


@pytest.mark.django_db(transaction=True)
def test_share_groups_go_back_with_what_they_hold() -> None:
    """An operator can go back a release with groups in use: policies and tenants' versions stay, groups' are gone."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    create_share_group(name="docs", description="", kv_soft_bytes=0, kv_hard_bytes=1, actor=ACTOR)
    register_prefix(group="docs", name="one", text="x", actor=ACTOR)
    set_policy(tenant_id=tenant.id, expected_version=1, changes={"share_group": "docs"}, actor=ACTOR)
    call_command("migrate", "tenants", "0002", verbosity=0)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT version FROM tenants_policyversion ORDER BY version")
            assert cursor.fetchall() == [(1,), (4,)]
    finally:
        call_command("migrate", verbosity=0)
    assert Policy.objects.for_tenant(tenant.id).get().share_group == ""
    assert not ShareGroup.objects.exists()
