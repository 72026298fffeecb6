"""The demo of embedded mode: an operator, and the tenants minnow and whale."""

import secrets

import msgspec
from django.db import transaction
from django.db.models import QuerySet

from tenants import keys, selectors
from tenants.contracts import Actor, DemoAccess, DemoAccount, TenantView
from tenants.models import ApiKey, ManagementKey, Membership, User
from tenants.models.member import Role
from tenants.services import keys as key_service
from tenants.services import tenants as tenant_service
from tenants.services.members import set_member

DEMO_TENANTS = ("minnow", "whale")
KEY_NAME = "demo"
_SYSTEM = Actor("system", "demo", "demo set-up")


@transaction.atomic
def ensure_demo(access: DemoAccess | None = None) -> DemoAccess:
    """Create what is missing of the demo, and make the credentials in `access` the ones that work.

    Args:
        access: what the last call returned, kept by the caller; None: fresh credentials. Old ones then stop working.

    Returns:
        The credentials that now work: those given, or new ones (also in place of a demo key that was revoked). A call
        with what the last one returned changes nothing.
    """
    wanted = access or new_access()
    operator = _operator_key(wanted.operator, _user(wanted.operator, is_operator=True))
    accounts: dict[str, DemoAccount] = {}
    for name in DEMO_TENANTS:
        account = wanted.tenants[name]
        tenant = selectors.tenant(name) or _create(name)
        user = _user(account, is_operator=False)
        if not Membership.objects.for_tenant(tenant.id).filter(user=user, role=Role.OWNER).exists():
            set_member(tenant_id=tenant.id, email=account.email, role="owner", by_role="operator", actor=_SYSTEM)
        accounts[name] = _tenant_key(account, tenant)
    return DemoAccess(operator=operator, tenants=accounts)


def new_access() -> DemoAccess:
    """Return fresh credentials; nothing knows them yet."""
    return DemoAccess(
        operator=DemoAccount(
            email="operator@demo.tollgate.local", password=secrets.token_urlsafe(12), api_key=keys.new_key("op")
        ),
        tenants={
            name: DemoAccount(
                email=f"{name}@demo.tollgate.local",
                password=secrets.token_urlsafe(12),
                api_key=keys.new_key("live"),
                slug=name,
            )
            for name in DEMO_TENANTS
        },
    )


def _create(name: str) -> TenantView:
    return tenant_service.create_tenant(slug=name, name=name.capitalize(), actor=_SYSTEM)


def _user(account: DemoAccount, *, is_operator: bool) -> User:
    user = User.objects.select_for_update().filter(email=account.email).first()
    if user is None:
        return User.objects.create_user(account.email, account.password, is_staff=is_operator)
    if not user.check_password(account.password) or not user.is_active:
        user.set_password(account.password)
        user.is_active = True
        user.save(update_fields=["password", "is_active"])
    return user


def _tenant_key(account: DemoAccount, tenant: TenantView) -> DemoAccount:
    """Make a key of the tenant work and return the account with it."""
    if _keep(account.api_key, ApiKey.objects.for_tenant(tenant.id), tenant.id):
        return account
    raw = _unused(account.api_key, ApiKey.objects.across_tenants())
    made = key_service.create_api_key(tenant_id=tenant.id, name=KEY_NAME, actor=_SYSTEM, raw_key=raw)
    return msgspec.structs.replace(account, api_key=made.secret)


def _operator_key(account: DemoAccount, operator: User) -> DemoAccount:
    """Make a key of the operator work and return the account with it."""
    everywhere = ManagementKey.objects.across_tenants()
    if _keep(account.api_key, everywhere.filter(tenant=None), None):
        return account
    raw = _unused(account.api_key, everywhere)
    made = key_service.create_management_key(name=KEY_NAME, role="operator", actor=_SYSTEM, user=operator, raw_key=raw)
    return msgspec.structs.replace(account, api_key=made.secret)


def _keep(raw: str, stored: QuerySet[ApiKey] | QuerySet[ManagementKey], tenant_id: str | None) -> bool:
    """Tell whether `raw` works; demo keys of lost credentials are revoked."""
    digest = key_service.digest(raw)
    made_here = stored.filter(name=KEY_NAME, created_by=_SYSTEM.label, revoked_at=None)
    for old in made_here.exclude(digest=digest):
        key_service.revoke_key(key_id=old.pk, tenant_id=tenant_id, actor=_SYSTEM)
    row = stored.filter(digest=digest).first()
    return row is not None and row.usable()


def _unused(raw: str, stored: QuerySet[ApiKey] | QuerySet[ManagementKey]) -> str:
    """Return `raw`, or "" for a fresh key where its id is taken: it was revoked or rotated, or the pepper changed."""
    parsed = keys.parse_key(raw)
    return raw if parsed is not None and not stored.filter(pk=parsed.key_id).exists() else ""
