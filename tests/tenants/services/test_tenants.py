"""Creating and changing tenants."""

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from gateway.database import conninfo
from tenants import rows, selectors
from tenants.contracts import KEYS_CHANNEL, TENANT_COLOURS, Actor, TenantView
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import AuditEvent, Tenant
from tenants.services.tenants import create_tenant, update_tenant

ACTOR = Actor("system", "tests", "tests")


def test_a_tenant_begins_complete(tenant: TenantView) -> None:
    """Policy with a version, a default project and a secret of its own are there from the first moment."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    assert (policy.version, policy.kv_soft_bytes, policy.kv_hard_bytes) == (
        selectors.policy_version(),
        0,
        256 << 20,
    )
    assert [project.name for project in selectors.projects(tenant.id)] == ["default"]
    assert selectors.tenant("acme") == selectors.tenant_by_id(tenant.id) == tenant
    event = AuditEvent.objects.for_tenant(tenant.id).get()
    assert event.action == "tenant.created"
    assert "secret" not in str(event.after)


def test_namespaces_are_derived_and_differ(make_tenant: Callable[..., TenantView]) -> None:
    """Each tenant's 32-byte KV namespace comes from its own secret, and is not the secret."""
    make_tenant("one")
    make_tenant("two")
    secrets = [bytes(row.secret) for row in Tenant.objects.all()]
    namespaces = [rows.namespace(secret) for secret in secrets]
    assert len({*secrets, *namespaces}) == 4
    assert all(len(namespace) == 32 for namespace in namespaces)
    by_hand = hmac.new(secrets[0], b"tollgate kv namespace v1", hashlib.sha256).digest()
    assert namespaces[0] == by_hand  # stable: a change would void every parked block


def test_the_first_tenants_differ_in_colour(make_tenant: Callable[..., TenantView]) -> None:
    """Colours go round in their order."""
    colours = [make_tenant(f"t{n}").colour for n in range(TENANT_COLOURS + 2)]
    assert colours == [*range(TENANT_COLOURS), 0, 1]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("slug", {"slug": "A b"}),
        ("slug", {"slug": "a\n"}),
        ("slug", {"slug": ""}),
        ("name", {"name": ""}),
        ("name", {"name": "a\0"}),
        ("time_zone", {"time_zone": "Mars"}),
        ("kv_hard_bytes", {"policy": {"kv_hard_bytes": 0}}),
        ("nonsense", {"policy": {"nonsense": 0}}),
    ],
)
def test_a_wrong_value_is_named_and_nothing_is_made(db: None, actor: Actor, field: str, values: dict[str, Any]) -> None:
    """No half of a tenant stays behind."""
    with pytest.raises(Invalid) as caught:
        create_tenant(**{"slug": "acme", "name": "Acme", "actor": actor, **values})
    assert caught.value.field == field
    assert not Tenant.objects.exists()


def test_a_slug_is_taken_once(tenant: TenantView, make_tenant: Callable[..., TenantView]) -> None:
    """The second tenant of a name is refused."""
    with pytest.raises(Conflict, match="acme"):
        make_tenant("acme")


@pytest.mark.django_db(transaction=True)
def test_of_two_that_take_one_slug_at_once_one_wins(in_threads: Callable[..., list[Any]]) -> None:
    """The race ends in a conflict, never in a database error, and colours stay distinct."""

    def make(slug: str) -> Callable[[], TenantView]:
        return lambda: create_tenant(slug=slug, name="A", actor=ACTOR)

    results = in_threads(*(make(slug) for slug in ("one", "one", "one", "two", "three")))
    made = [result for result in results if isinstance(result, TenantView)]
    assert sum(isinstance(result, Conflict) for result in results) == 2
    assert sorted(tenant.colour for tenant in made) == [0, 1, 2]


def test_a_change_is_audited_with_before_and_after(tenant: TenantView, actor: Actor) -> None:
    """The trail shows both sides; a change to the same leaves none."""
    changed = update_tenant(tenant_id=tenant.id, changes={"name": "New", "time_zone": "Asia/Tokyo"}, actor=actor)
    assert (changed.name, changed.time_zone) == ("New", "Asia/Tokyo")
    update_tenant(tenant_id=tenant.id, changes={"name": "New"}, actor=actor)
    (event,) = AuditEvent.objects.for_tenant(tenant.id).filter(action="tenant.changed")
    assert (event.before["name"], event.after["name"]) == ("Acme", "New")


@pytest.mark.parametrize(("field", "value"), [("slug", "x"), ("status", "dead"), ("secret", "x"), ("name", "")])
def test_only_name_zone_and_status_change(tenant: TenantView, actor: Actor, field: str, value: str) -> None:
    """What must not change is refused by name."""
    with pytest.raises(Invalid) as caught:
        update_tenant(tenant_id=tenant.id, changes={field: value}, actor=actor)
    assert caught.value.field == field


def test_an_unknown_tenant_is_not_found(db: None, actor: Actor) -> None:
    """There is nothing to change."""
    with pytest.raises(NotFound):
        update_tenant(tenant_id="00000000-0000-0000-0000-000000000001", changes={"name": "x"}, actor=actor)


@pytest.mark.django_db(transaction=True)
def test_suspending_tells_the_web_processes() -> None:
    """Held grants of the tenant are to be forgotten; the word goes out with the commit."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    with psycopg.connect(conninfo(connection.settings_dict), autocommit=True) as listener:
        listener.execute(f"LISTEN {KEYS_CHANNEL}")
        update_tenant(tenant_id=tenant.id, changes={"status": "suspended"}, actor=ACTOR)
        (note,) = listener.notifies(timeout=60, stop_after=1)
    assert note.payload == f"tenant:{tenant.id}"
