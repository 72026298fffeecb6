"""A tenant's disk is encrypted with a secret that only workers get, and that is gone for good when it is dropped."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection

from tenants import rows, selectors
from tenants.contracts import Actor, PushedPolicy, TenantView
from tenants.errors import PepperMissing, PolicyInvalid
from tenants.models import AuditEvent, OutboxEvent, Policy, PolicyVersion, Tenant
from tenants.services.kv import erase_kv
from tenants.services.policy import revert_policy, set_policy
from tests.tenants.services.test_policy import current
from tests.tenants.services.test_policy_history import change


def pushed(tenant: TenantView) -> PushedPolicy:
    """Return the policy as workers get it."""
    return dict(selectors.pushed_policies())[tenant.id]


def test_nothing_is_encrypted_unless_it_is_wanted(tenant: TenantView) -> None:
    """A new tenant may keep two gigabytes on disk, in the clear."""
    assert (current(tenant).disk_bytes, current(tenant).encrypt_disk) == (2 << 30, False)
    assert pushed(tenant).disk_secret == b""


def test_each_tenant_has_a_secret_of_its_own_that_stays(
    tenant: TenantView, make_tenant: Callable[..., TenantView], actor: Actor
) -> None:
    """Other changes leave it, a tenant may begin with one, and no two are alike."""
    change(tenant, actor, encrypt_disk=True)
    secret = pushed(tenant).disk_secret
    assert len(secret) == 32
    change(tenant, actor, rpm=7)
    assert pushed(tenant).disk_secret == secret
    other = make_tenant("other", policy={"encrypt_disk": True})
    assert len(pushed(other).disk_secret) == 32
    assert pushed(other).disk_secret != secret
    assert rows.disk_secret(Policy.objects.for_tenant(tenant.id).get().disk_seed, "another pepper") != secret


def test_a_dropped_secret_never_comes_back(tenant: TenantView, actor: Actor) -> None:
    """Neither by encrypting again nor by going back to a version that was encrypted."""
    change(tenant, actor, encrypt_disk=True)
    first, version = pushed(tenant).disk_secret, current(tenant).version
    change(tenant, actor, encrypt_disk=False)
    assert bytes(Policy.objects.for_tenant(tenant.id).get().disk_seed) == b""
    assert pushed(tenant).disk_secret == b""
    now = current(tenant).version
    revert_policy(tenant_id=tenant.id, version=version, expected_version=now, actor=actor)
    second = pushed(tenant).disk_secret
    assert len(second) == 32
    assert second != first


def test_erasing_all_kv_changes_secret_and_namespace(tenant: TenantView, actor: Actor) -> None:
    """The policy stays as it was, under a new version of the history that says what was done."""
    change(tenant, actor, encrypt_disk=True)
    before, secret = current(tenant), pushed(tenant).disk_secret
    namespace = rows.namespace(Tenant.objects.get(pk=tenant.id).secret)
    after = erase_kv(tenant_id=tenant.id, workers=(), actor=actor)
    assert after.version > before.version
    assert after.encrypt_disk
    assert len(pushed(tenant).disk_secret) == 32
    assert pushed(tenant).disk_secret != secret
    assert rows.namespace(Tenant.objects.get(pk=tenant.id).secret) != namespace
    made = selectors.policy_history(tenant.id)[0]
    assert (made.action, made.changed) == ("kv.erased", ())


def test_it_is_shown_nowhere(tenant: TenantView, actor: Actor, operator: Any) -> None:
    """Neither the secret nor its seed is in the audit trail, the outbox, the history, an answer or a printed policy."""
    change(tenant, actor, encrypt_disk=True)
    erase_kv(tenant_id=tenant.id, workers=(), actor=actor)
    row = Policy.objects.for_tenant(tenant.id).get()
    secrets = [pushed(tenant).disk_secret, bytes(row.disk_seed)]
    told = [
        *AuditEvent.objects.for_tenant(tenant.id).values_list("before", "after"),
        *OutboxEvent.objects.for_tenant(tenant.id).values_list("payload"),
        *PolicyVersion.objects.for_tenant(tenant.id).values_list("policy"),
    ]
    texts = [json.dumps(told), repr(pushed(tenant)), str(row), repr(row)]
    paths = ("", "policy/", "policy/history/", "audit/")
    texts += [operator.get(f"tenants/acme/{path}").content.decode() for path in paths]
    for text in texts:
        assert "disk_se" not in text
        assert not any(secret.hex() in text for secret in secrets)


def test_without_a_pepper_no_worker_is_told_that_a_disk_is_plain(
    tenant: TenantView, actor: Actor, settings: Any
) -> None:
    """A process that can't derive the secret fails, rather than have what was encrypted written in the clear."""
    change(tenant, actor, encrypt_disk=True)
    settings.KEY_PEPPER = ""
    with pytest.raises(PepperMissing):
        selectors.pushed_policies()


@pytest.mark.parametrize("value", [1, "yes", None])
def test_only_true_and_false_are_meant(tenant: TenantView, actor: Actor, value: object) -> None:
    """A typing mistake neither encrypts a disk nor gives one up."""
    with pytest.raises(PolicyInvalid, match="encrypt_disk must be true or false"):
        set_policy(
            tenant_id=tenant.id,
            expected_version=current(tenant).version,
            changes={"encrypt_disk": value},
            actor=actor,
        )


@pytest.mark.parametrize("statement", ["encrypt_disk = true", "disk_seed = '\\x0102'"])
def test_the_database_refuses_a_disk_without_its_seed(tenant: TenantView, statement: str) -> None:
    """Whatever writes the row, an encrypted disk has 32 bytes and another none."""
    with connection.cursor() as cursor, pytest.raises(IntegrityError):
        cursor.execute(f"UPDATE tenants_policy SET {statement}")


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("developer", 403), ("admin", 403), ("owner", 200)])
def test_an_owner_may_encrypt_and_nothing_else(
    tenant: TenantView, make_user: Callable[..., Any], signed_in: Callable[..., Any], role: str, status: int
) -> None:
    """It takes nothing from other tenants; all other limits are the operators'."""
    api = signed_in(make_user("m@example.com", tenant, role))
    etag = {"If-Match": f'"{current(tenant).version}"'}
    for body in ({"rpm": 1}, {"encrypt_disk": True, "rpm": 1}, {"encrypt_disk": True, "overcommit": True}, {}):
        assert api.patch("tenants/acme/policy/", body, **etag).status_code == 403
    answer = api.patch("tenants/acme/policy/", {"encrypt_disk": True}, **etag)
    assert answer.status_code == status
    assert current(tenant).encrypt_disk is (status == 200)
