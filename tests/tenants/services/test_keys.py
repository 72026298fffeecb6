"""Making, rotating and revoking keys."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from gateway.database import conninfo
from tenants import keys, selectors
from tenants.contracts import KEYS_CHANNEL, Actor, ApiKeyView, CreatedKey, KeyOptions, TenantView
from tenants.errors import Conflict, Invalid, NotFound, PepperMissing
from tenants.models import ApiKey, AuditEvent, OutboxEvent
from tenants.services.keys import create_api_key, create_management_key, digest, revoke_key, rotate_key
from tenants.services.projects import create_project, rename_project
from tenants.services.tenants import create_tenant, update_tenant

ACTOR = Actor("system", "tests", "tests")


def grant_of(made: CreatedKey) -> Any:
    """Return what a key may do, as a web process asks."""
    return selectors.grant_for_digest(digest(made.secret))


def test_a_new_key_grants_what_its_options_say(tenant: TenantView, actor: Actor) -> None:
    """Everything a web process needs is in the grant."""
    project = create_project(tenant_id=tenant.id, name="mobile", actor=actor)
    expires_at = time.time() + 3600
    options = KeyOptions(
        project_id=project.id,
        scopes=("generate",),
        models=("tiny",),
        expires_at=expires_at,
        ip_ranges=("10.0.0.0/8",),
        rpm=5,
        tpm=7,
    )
    made = create_api_key(tenant_id=tenant.id, name="app", actor=actor, options=options)
    grant = grant_of(made)
    assert grant.tenant_id == tenant.id
    assert grant.tenant_slug == "acme"
    assert grant.project_id == project.id
    assert (grant.scopes, grant.models, grant.ip_ranges) == (("generate",), ("tiny",), ("10.0.0.0/8",))
    assert (grant.rpm, grant.tpm) == (5, 7)
    assert grant.expires_at == pytest.approx(expires_at)
    assert grant.policy == selectors.policy(tenant.id)
    assert len(grant.namespace) == 32


def test_a_key_without_a_project_finds_one_whatever_its_name(tenant: TenantView, actor: Actor) -> None:
    """It goes to `default`, and to the tenant's oldest project once that one was renamed."""
    first = selectors.projects(tenant.id)[0]
    create_project(tenant_id=tenant.id, name="a newer one", actor=actor)
    assert grant_of(create_api_key(tenant_id=tenant.id, name="app", actor=actor)).project_id == first.id
    rename_project(tenant_id=tenant.id, project_id=first.id, name="web", actor=actor)
    assert grant_of(create_api_key(tenant_id=tenant.id, name="app", actor=actor)).project_id == first.id
    newest = create_project(tenant_id=tenant.id, name="default", actor=actor)
    assert grant_of(create_api_key(tenant_id=tenant.id, name="app", actor=actor)).project_id == newest.id


def test_the_raw_key_is_stored_nowhere(tenant: TenantView, actor: Actor) -> None:
    """Neither row, nor audit, nor outbox holds secret or digest beyond the digest's own column."""
    made = create_api_key(tenant_id=tenant.id, name="app", actor=actor)
    secret = made.secret.rsplit("_", 1)[1]
    row = ApiKey.objects.for_tenant(tenant.id).values().get()
    stored = digest(made.secret)
    assert row.pop("digest") == stored
    trail = [*AuditEvent.objects.for_tenant(tenant.id).values(), *OutboxEvent.objects.for_tenant(tenant.id).values()]
    for text in (str(row), str(trail), repr(made.key)):
        assert secret not in text
        assert stored not in text


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "x" * 81}),
        ("scopes", {"options": KeyOptions(scopes=())}),
        ("project_id", {"options": KeyOptions(project_id="nonsense")}),
        ("project_id", {"options": KeyOptions(project_id="00000000-0000-0000-0000-000000000001")}),
        ("raw_key", {"raw_key": "tg_live_made_up"}),
        ("raw_key", {"raw_key": keys.new_key("op")}),
    ],
)
def test_a_wrong_value_is_named(tenant: TenantView, actor: Actor, field: str, arguments: dict[str, Any]) -> None:
    """Nothing is made of a wrong request."""
    with pytest.raises(Invalid) as caught:
        create_api_key(**{"tenant_id": tenant.id, "name": "k", "actor": actor, **arguments})
    assert caught.value.field == field
    assert selectors.api_keys(tenant.id) == []


def test_another_tenants_project_is_refused(make_tenant: Callable[..., TenantView], actor: Actor) -> None:
    """A key cannot be hung into a stranger's project."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    options = KeyOptions(project_id=selectors.projects(theirs.id)[0].id)
    with pytest.raises(Invalid, match="project_id"):
        create_api_key(tenant_id=mine.id, name="k", actor=actor, options=options)


def test_without_a_pepper_no_key_is_made(tenant: TenantView, actor: Actor, settings: Any) -> None:
    """A deployment that forgot KEY_PEPPER fails loudly."""
    settings.KEY_PEPPER = ""
    with pytest.raises(PepperMissing):
        create_api_key(tenant_id=tenant.id, name="k", actor=actor)


def test_a_revoked_key_grants_nothing_and_stays_listed(tenant: TenantView, actor: Actor) -> None:
    """Revoking is at once and for good; doing it twice writes it down once."""
    made = create_api_key(tenant_id=tenant.id, name="k", actor=actor)
    for _ in range(2):
        assert revoke_key(key_id=made.key.id, tenant_id=tenant.id, actor=actor).status == "revoked"
    assert grant_of(made) is None
    assert [key.status for key in selectors.api_keys(tenant.id)] == ["revoked"]
    assert AuditEvent.objects.for_tenant(tenant.id).filter(action="api_key.revoked").count() == 1


def test_an_expired_key_and_a_suspended_tenants_key_grant_nothing(tenant: TenantView, actor: Actor) -> None:
    """Time and the operator each end a key's use; lifting the suspension brings it back."""
    made = create_api_key(tenant_id=tenant.id, name="k", actor=actor)
    update_tenant(tenant_id=tenant.id, changes={"status": "suspended"}, actor=actor)
    assert grant_of(made) is None
    update_tenant(tenant_id=tenant.id, changes={"status": "active"}, actor=actor)
    assert grant_of(made) is not None
    ApiKey.objects.for_tenant(tenant.id).update(expires_at=timezone.now())
    assert grant_of(made) is None
    assert [key.status for key in selectors.api_keys(tenant.id)] == ["expired"]


def test_a_key_of_another_tenant_is_not_found(make_tenant: Callable[..., TenantView], actor: Actor) -> None:
    """Knowing a key's id gives no hold on it."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    made = create_api_key(tenant_id=theirs.id, name="k", actor=actor)
    for touch in (revoke_key, rotate_key):
        for tenant_id in (mine.id, None):
            with pytest.raises(NotFound):
                touch(key_id=made.key.id, tenant_id=tenant_id, actor=actor)
    assert grant_of(made) is not None


def test_rotation_overlaps(tenant: TenantView, actor: Actor) -> None:
    """The successor may do the same, and the old key works on until the overlap ends."""
    options = KeyOptions(scopes=("generate",), models=("tiny",), rpm=3)
    old = create_api_key(tenant_id=tenant.id, name="app", actor=actor, options=options)
    new = rotate_key(key_id=old.key.id, tenant_id=tenant.id, actor=actor, overlap_seconds=60)
    before, after = grant_of(old), grant_of(new)
    assert (after.scopes, after.models, after.rpm, after.project_id) == (("generate",), ("tiny",), 3, before.project_id)
    assert after.expires_at == 0
    assert 0 < before.expires_at - time.time() <= 60
    listed = {key.id: key for key in selectors.api_keys(tenant.id)}
    assert listed[old.key.id].replaced_by == new.key.id
    assert listed[new.key.id].last_used_at is None


def test_rotation_keeps_the_lifetime_and_never_prolongs_the_old_key(tenant: TenantView, actor: Actor) -> None:
    """A key of one hour gets a successor of one hour; its own end does not move back."""
    end = time.time() + 3600
    old = create_api_key(tenant_id=tenant.id, name="k", actor=actor, options=KeyOptions(expires_at=end))
    new = rotate_key(key_id=old.key.id, tenant_id=tenant.id, actor=actor, overlap_seconds=86400)
    assert grant_of(old).expires_at == pytest.approx(end)
    assert grant_of(new).expires_at == pytest.approx(time.time() + 3600, abs=30)


def test_a_key_is_rotated_once_and_only_while_it_works(tenant: TenantView, actor: Actor) -> None:
    """A chain has no forks, and a dead key has no successor."""
    old = create_api_key(tenant_id=tenant.id, name="k", actor=actor)
    with pytest.raises(Invalid, match="overlap_seconds"):
        rotate_key(key_id=old.key.id, tenant_id=tenant.id, actor=actor, overlap_seconds=-1)
    new = rotate_key(key_id=old.key.id, tenant_id=tenant.id, actor=actor)
    with pytest.raises(Conflict, match="replaced"):
        rotate_key(key_id=old.key.id, tenant_id=tenant.id, actor=actor)
    revoke_key(key_id=new.key.id, tenant_id=tenant.id, actor=actor)
    with pytest.raises(Conflict, match="revoked"):
        rotate_key(key_id=new.key.id, tenant_id=tenant.id, actor=actor)


@pytest.mark.django_db(transaction=True)
def test_of_two_rotations_at_once_one_wins(in_threads: Callable[..., list[Any]]) -> None:
    """Two people press the button: one successor."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    old = create_api_key(tenant_id=tenant.id, name="k", actor=ACTOR)
    results = in_threads(*[lambda: rotate_key(key_id=old.key.id, tenant_id=tenant.id, actor=ACTOR)] * 4)
    assert sum(isinstance(result, CreatedKey) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 3
    assert len(selectors.api_keys(tenant.id)) == 2


@pytest.mark.django_db(transaction=True)
def test_revoking_tells_the_web_processes_at_commit() -> None:
    """The payload names the key, and nothing is said of a key that was revoked before."""
    tenant = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    first, second = (create_api_key(tenant_id=tenant.id, name="k", actor=ACTOR).key for _ in range(2))
    with psycopg.connect(conninfo(connection.settings_dict), autocommit=True) as listener:
        listener.execute(f"LISTEN {KEYS_CHANNEL}")
        for key in (first, first, second):
            revoke_key(key_id=key.id, tenant_id=tenant.id, actor=ACTOR)
        heard = [note.payload for note in listener.notifies(timeout=60, stop_after=2)]
    assert heard == [f"key:{first.id}", f"key:{second.id}"]


def test_management_keys_have_a_role_that_fits(tenant: TenantView, actor: Actor) -> None:
    """An operator's key has no tenant; a tenant's is owner or admin; neither is an API key."""
    fleet = create_management_key(name="k", role="operator", actor=actor)
    own = create_management_key(name="k", role="admin", actor=actor, tenant_id=tenant.id)
    assert fleet.secret.startswith("tg_op_")
    assert own.secret.startswith("tg_adm_")
    assert not isinstance(own.key, ApiKeyView)
    assert grant_of(fleet) is None
    assert grant_of(own) is None
    for role, tenant_id in (("admin", None), ("operator", tenant.id), ("viewer", tenant.id)):
        with pytest.raises(Invalid, match="role"):
            create_management_key(name="k", role=role, actor=actor, tenant_id=tenant_id)


def test_a_management_key_rotates_within_its_kind(tenant: TenantView, actor: Actor) -> None:
    """The successor is of the same kind, role and tenant."""
    old = create_management_key(name="k", role="owner", actor=actor, tenant_id=tenant.id)
    new = rotate_key(key_id=old.key.id, tenant_id=tenant.id, actor=actor)
    assert new.secret.startswith("tg_adm_")
    assert not isinstance(new.key, ApiKeyView)
    assert new.key.role == "owner"


def test_listing_is_newest_first(tenant: TenantView, actor: Actor) -> None:
    """The newest key is on top."""
    for name in ("one", "two"):
        create_api_key(tenant_id=tenant.id, name=name, actor=actor)
    ApiKey.objects.for_tenant(tenant.id).filter(name="one").update(created_at=timezone.now() - timedelta(days=1))
    assert [key.name for key in selectors.api_keys(tenant.id)] == ["two", "one"]
