"""The demo's accounts."""

import pytest
from django.contrib.auth import authenticate

from tenants import keys, selectors
from tenants.contracts import Actor, DemoAccess, DemoAccount
from tenants.models import ApiKey, AuditEvent, ManagementKey, Policy, User
from tenants.services.demo import ensure_demo
from tenants.services.keys import create_api_key, digest, revoke_key, rotate_key


def works(account: DemoAccount) -> bool:
    """Tell whether a demo account's password and key open what they should."""
    user = authenticate(username=account.email, password=account.password)
    if not account.slug:
        stored = ManagementKey.objects.across_tenants().filter(digest=digest(account.api_key), revoked_at=None)
        return isinstance(user, User) and user.is_staff and stored.exists()
    grant = selectors.grant_for_digest(digest(account.api_key))
    assert isinstance(user, User)
    assert grant is not None
    return grant.tenant_slug == account.slug and selectors.role_of(user, grant.tenant_id) == "owner"


def all_work(access: DemoAccess) -> bool:
    """Tell whether all accounts work."""
    return works(access.operator) and all(works(account) for account in access.tenants.values())


@pytest.mark.django_db
def test_the_demo_is_complete() -> None:
    """An operator, a minnow and a whale, without rate limits, with room for 32 streams at least."""
    access = ensure_demo()
    assert set(access.tenants) == {"minnow", "whale"}
    assert all_work(access)
    for policy in Policy.objects.across_tenants():
        assert (policy.rpm, policy.tpm) == (0, 0)
        assert policy.max_running >= 32
        assert policy.share_group == ""


@pytest.mark.django_db
def test_a_restart_changes_nothing() -> None:
    """With the kept credentials the second call writes nothing at all."""
    access = ensure_demo()
    trail = AuditEvent.objects.across_tenants().count()
    assert ensure_demo(access) == access
    assert AuditEvent.objects.across_tenants().count() == trail
    assert all_work(access)


@pytest.mark.django_db
def test_lost_credentials_are_replaced() -> None:
    """A new file of secrets: its credentials work, and the old ones do not."""
    old = ensure_demo()
    new = ensure_demo()
    assert all_work(new)
    assert authenticate(username=old.operator.email, password=old.operator.password) is None
    for account in old.tenants.values():
        assert selectors.grant_for_digest(digest(account.api_key)) is None
    old_operator = ManagementKey.objects.across_tenants().get(digest=digest(old.operator.api_key))
    assert old_operator.revoked_at is not None


@pytest.mark.django_db
def test_a_new_database_takes_the_kept_credentials() -> None:
    """The keys in somebody's shell history work on after the database was thrown away."""
    access = DemoAccess(
        operator=DemoAccount(
            email="operator@demo.tollgate.local", password="correct horse 9", api_key=keys.new_key("op")
        ),
        tenants={
            name: DemoAccount(
                email=f"{name}@demo.tollgate.local",
                password="correct horse 9",
                api_key=keys.new_key("live"),
                slug=name,
            )
            for name in ("minnow", "whale")
        },
    )
    assert ensure_demo(access) == access
    assert all_work(access)


@pytest.mark.django_db
def test_a_revoked_or_rotated_demo_key_stays_dead(actor: Actor) -> None:
    """What somebody revoked does not come back with a restart: a fresh key takes its place, other keys stay."""
    access = ensure_demo()
    minnow = access.tenants["minnow"]
    tenant = selectors.tenant("minnow")
    assert tenant is not None
    own = create_api_key(tenant_id=tenant.id, name="demo", actor=actor)
    parsed = keys.parse_key(minnow.api_key)
    assert parsed is not None
    successor = rotate_key(key_id=parsed.key_id, tenant_id=tenant.id, actor=actor)
    revoke_key(key_id=parsed.key_id, tenant_id=tenant.id, actor=actor)
    again = ensure_demo(access)
    assert again.tenants["minnow"].api_key != minnow.api_key
    assert again.tenants["whale"] == access.tenants["whale"]
    assert all_work(again)
    for made in (own, successor):
        assert selectors.grant_for_digest(digest(made.secret)) is not None


@pytest.mark.django_db
def test_a_changed_pepper_gets_fresh_keys(settings: object) -> None:
    """Every digest is void then; the demo repairs itself."""
    access = ensure_demo()
    settings.KEY_PEPPER = "another"  # type: ignore[attr-defined]
    again = ensure_demo(access)
    assert all_work(again)
    assert ApiKey.objects.across_tenants().filter(revoked_at=None).count() == 2
