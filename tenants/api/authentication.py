"""Who calls the management API: a person with a session, or a management key."""

import ipaddress
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Q
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from tenants import keys, selectors
from tenants.authority import lesser, may
from tenants.contracts import Actor
from tenants.models import ManagementKey, User
from tenants.services.keys import digest

_TOUCH_EVERY = timedelta(minutes=1)  # last use is coarse: at most one write a minute and key
_INVALID = "The key is not valid: it is unknown, expired or revoked, or was mistyped."


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whoever presents a management key; takes the place of `request.user`."""

    key: ManagementKey

    is_authenticated = True
    is_anonymous = False
    is_active = True

    @property
    def pk(self) -> str:
        """The key's id."""
        return self.key.pk


@dataclass(frozen=True, slots=True)
class Caller:
    """What the authenticated caller may do."""

    user: User | None
    key: ManagementKey | None

    @property
    def actor(self) -> Actor:
        """The caller as the audit trail names it."""
        if self.key is not None:
            return Actor("key", self.key.pk, f"{self.key.name} ({self.key.pk})")
        assert self.user is not None
        return Actor("user", str(self.user.pk), self.user.email)

    @property
    def is_operator(self) -> bool:
        """Whether the caller stands above tenants."""
        if self.key is not None:
            return self.key.role == "operator"
        return self.user is not None and self.user.is_staff

    @property
    def may_write(self) -> bool:
        """Whether the caller may change anything at all."""
        return self.key is None or "write" in self.key.scopes

    def role_in(self, tenant_id: str) -> str:
        """Return the caller's role in a tenant, "" for none. A key never outranks the person who made it."""
        if self.key is None:
            assert self.user is not None
            return selectors.role_of(self.user, tenant_id) or ""
        if self.key.role == "operator":
            return "operator"
        if str(self.key.tenant_id) != tenant_id:
            return ""
        if self.key.user is None:
            return self.key.role
        return lesser(self.key.role, selectors.role_of(self.key.user, tenant_id) or "")


def caller_of(request: Request) -> Caller:
    """Return the caller of an authenticated request."""
    holder: object = request.user  # either class: the stubs know of users alone
    if isinstance(holder, KeyHolder):
        return Caller(user=None, key=holder.key)
    assert isinstance(holder, User)
    return Caller(user=holder, key=None)


class ManagementKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer tg_op_…` or `tg_adm_…`."""

    def authenticate(self, request: Request) -> tuple[KeyHolder, None] | None:
        """Return the holder of the key, None where the request has no Authorization header."""
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if not header:
            return None
        scheme, _, raw = header.partition(" ")
        if scheme.lower() != "bearer":
            raise AuthenticationFailed("Write Authorization: Bearer <management key>.")
        row = _find(raw.strip())
        _check_address(row, request.META.get("REMOTE_ADDR", ""))
        now = timezone.now()
        unseen = Q(last_used_at=None) | Q(last_used_at__lt=now - _TOUCH_EVERY)
        ManagementKey.objects.across_tenants().filter(unseen, pk=row.pk).update(last_used_at=now)
        return KeyHolder(row), None

    def authenticate_header(self, request: Request) -> str:
        """Make refusals a 401."""
        return 'Bearer realm="tollgate"'


def _find(raw: str) -> ManagementKey:
    parsed = keys.parse_key(raw)
    if parsed is None:
        raise AuthenticationFailed(_INVALID)
    if parsed.kind == "live":
        raise AuthenticationFailed("An API key generates and does not manage: use a management key (tg_op_, tg_adm_).")
    query = ManagementKey.objects.across_tenants().select_related("user")
    row = query.filter(digest=digest(raw)).first()
    if row is None or not row.usable() or not _backed(row):
        raise AuthenticationFailed(_INVALID)
    return row


def _backed(row: ManagementKey) -> bool:
    """Tell whether the person on whose rights the key hangs still has rights that reach."""
    if row.user is None:
        return True
    if row.tenant_id is None:
        return row.user.is_active and row.user.is_staff
    return may(selectors.role_of(row.user, row.tenant_id) or "", "manage")


def _check_address(row: ManagementKey, remote: str) -> None:
    if not row.ip_ranges:
        return
    try:
        address = ipaddress.ip_address(remote)
    except ValueError as error:
        raise AuthenticationFailed("This key is bound to addresses, and yours is not known.") from error
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if not any(address in ipaddress.ip_network(text) for text in row.ip_ranges):
        raise AuthenticationFailed("This key may not be used from your address.")
