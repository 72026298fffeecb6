"""Make, rotate and revoke keys. A raw key is returned once and stored nowhere; what is stored is its digest."""

import copy
import uuid
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models.base import ModelState
from django.utils import timezone

from tenants import keys, rows
from tenants.contracts import (
    KEYS_CHANNEL,
    MANAGEMENT_KEY_SCOPES,
    Actor,
    ApiKeyView,
    CreatedKey,
    KeyOptions,
    ManagementKeyView,
)
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import ApiKey, ManagementKey, Project, Tenant, User
from tenants.models.key import KeyFields
from tenants.rules import keys as rules
from tenants.rules import values
from tenants.services.journal import Change, notify, write_down
from tenants.services.tenants import FIRST_PROJECT

MOST_OVERLAP_SECONDS = 90 * 86400


@transaction.atomic
def create_api_key(
    *,
    tenant_id: uuid.UUID | str,
    name: str,
    actor: Actor,
    options: KeyOptions | None = None,
    raw_key: str = "",
) -> CreatedKey:
    """Make a `tg_live_` key of a tenant.

    Args:
        tenant_id: the tenant.
        name: what people call it.
        actor: who makes it.
        options: project, scopes, models, expiry, addresses and limits; without, it is restricted by the policy alone.
        raw_key: take this key instead of a fresh one (demo credentials that outlive a database).

    Returns:
        The key and its secret, which nothing can show again.

    Raises:
        Invalid: names the field and the fix.
        NotFound: there is no such tenant.
    """
    _tenant(tenant_id)
    checked = rules.checked_options(options or KeyOptions(), timezone.now())
    raw, key_id = _raw("live", raw_key)
    row = ApiKey.objects.for_tenant(tenant_id).create(
        id=key_id,
        name=values.text("name", name, longest=80),
        digest=digest(raw),
        project=_project(tenant_id, checked.project_id),
        scopes=list(checked.scopes),
        allowed_models=list(checked.models),
        ip_ranges=list(checked.ip_ranges),
        expires_at=rules.moment(checked.expires_at, timezone.now()),
        rpm=checked.rpm,
        tpm=checked.tpm,
        created_by=actor.label[:254],
    )
    write_down(_change("api_key.created", row, after=_as_json(row)), actor)
    notify(KEYS_CHANNEL, f"key:{row.pk}")  # whoever was refused with it before may remember that
    return CreatedKey(key=rows.api_key_view(row), secret=raw)


@transaction.atomic
def create_management_key(
    *,
    name: str,
    role: str,
    actor: Actor,
    tenant_id: uuid.UUID | str | None = None,
    options: KeyOptions | None = None,
    user: User | None = None,
    raw_key: str = "",
) -> CreatedKey:
    """Make a `tg_op_` key (role `operator`, no tenant) or a `tg_adm_` key (role `owner` or `admin` of a tenant).

    Args:
        name: what people call it.
        role: operator, owner or admin; whether the caller may give it is the caller's own check.
        actor: who makes it.
        tenant_id: the tenant of a `tg_adm_` key.
        options: `scopes` (read, write), `expires_at` and `ip_ranges`; the rest does not apply to management keys.
        user: the person on whose rights it hangs: it never does more than they may still do. None: it stands by itself.
        raw_key: take this key instead of a fresh one.

    Raises:
        Invalid: names the field and the fix.
        NotFound: there is no such tenant.
    """
    wanted = options or KeyOptions(scopes=MANAGEMENT_KEY_SCOPES)
    values.choice("role", role, ("owner", "admin") if tenant_id else ("operator",))
    if tenant_id:
        _tenant(tenant_id)
    raw, key_id = _raw("adm" if tenant_id else "op", raw_key)
    row = ManagementKey.objects.across_tenants().create(
        id=key_id,
        name=values.text("name", name, longest=80),
        digest=digest(raw),
        tenant_id=tenant_id,
        role=role,
        user=user,
        scopes=list(rules.scopes(wanted.scopes, MANAGEMENT_KEY_SCOPES)),
        ip_ranges=list(rules.networks(wanted.ip_ranges)),
        expires_at=rules.moment(wanted.expires_at, timezone.now()),
        created_by=actor.label[:254],
    )
    row.refresh_from_db()  # so that `tenant_id` is a UUID whatever the caller gave
    write_down(_change("management_key.created", row, after=_as_json(row)), actor)
    return CreatedKey(key=rows.management_key_view(row), secret=raw)


@transaction.atomic
def revoke_key(*, key_id: str, tenant_id: uuid.UUID | str | None, actor: Actor) -> ApiKeyView | ManagementKeyView:
    """Revoke a key at once; revoking it again changes nothing.

    Args:
        key_id: the id inside the key.
        tenant_id: the tenant that it must belong to; None: an operator's management key.
        actor: who does it.

    Raises:
        NotFound: that tenant has no such key.
    """
    row = _locked(key_id, tenant_id)
    if row.revoked_at is None:
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        write_down(_change(f"{_noun(row)}.revoked", row, after=_as_json(row)), actor)
        notify(KEYS_CHANNEL, f"key:{row.pk}")
    return _view(row)


@transaction.atomic
def rotate_key(
    *, key_id: str, tenant_id: uuid.UUID | str | None, actor: Actor, overlap_seconds: int = 86400
) -> CreatedKey:
    """Make a key that may do what the old one may, which goes on working for `overlap_seconds` at most.

    A key with an expiry gets a successor of the same lifetime.

    Raises:
        NotFound: that tenant has no such key.
        Conflict: the key no longer works, or has a successor already.
        Invalid: the overlap is out of range.
    """
    values.whole("overlap_seconds", overlap_seconds, low=0, high=MOST_OVERLAP_SECONDS)
    old = _locked(key_id, tenant_id)
    if not old.usable() or old.replaced_by_id is not None:
        raise Conflict(f"key {key_id} is {rows.key_status(old)} or already replaced: create a new one instead")
    now = timezone.now()
    before = _as_json(old)
    raw, new_id = _raw("live" if isinstance(old, ApiKey) else "adm" if old.tenant_id else "op", "")
    new = _successor(old, new_id, digest(raw), now)
    new.created_by = actor.label[:254]
    new.save(force_insert=True)
    end = now + timedelta(seconds=overlap_seconds)
    old.expires_at = min(old.expires_at, end) if old.expires_at else end
    old.replaced_by_id = new_id
    old.save(update_fields=["expires_at", "replaced_by"])
    write_down(_change(f"{_noun(old)}.rotated", old, before=before, after=_as_json(old)), actor)
    write_down(_change(f"{_noun(new)}.created", new, after=_as_json(new)), actor)
    notify(KEYS_CHANNEL, f"key:{old.pk}")
    return CreatedKey(key=_view(new), secret=raw)


def digest(raw: str) -> str:
    """Return the digest of a raw key under this deployment's pepper."""
    return keys.key_digest(raw, settings.KEY_PEPPER)


def _raw(kind: keys.KeyKind, given: str) -> tuple[str, str]:
    raw = given or keys.new_key(kind)
    parsed = keys.parse_key(raw)
    if parsed is None or parsed.kind != kind:
        raise Invalid("raw_key", f"raw_key must be a well-formed tg_{kind}_ key")
    return raw, parsed.key_id


def _tenant(tenant_id: uuid.UUID | str) -> Tenant:
    row = Tenant.objects.filter(pk=tenant_id).first()
    if row is None:
        raise NotFound("there is no such tenant")
    return row


def _project(tenant_id: uuid.UUID | str, project_id: str) -> Project:
    query = Project.objects.for_tenant(tenant_id)
    if not project_id:  # the oldest where `default` was renamed: a key without a wish must always find a project
        row = query.filter(name=FIRST_PROJECT).first() or query.order_by("created_at", "pk").first()
    else:
        try:
            row = query.filter(pk=uuid.UUID(project_id)).first()
        except ValueError as error:
            raise Invalid("project_id", "project_id must be the id of a project of this tenant") from error
    if row is None:
        raise Invalid("project_id", "project_id must be the id of a project of this tenant")
    return row


def _locked(key_id: str, tenant_id: uuid.UUID | str | None) -> ApiKey | ManagementKey:
    """Return a tenant's key of either kind, or an operator's, locked."""
    if tenant_id is not None:
        api_key = ApiKey.objects.for_tenant(tenant_id).select_for_update().filter(pk=key_id).first()
        if api_key is not None:
            return api_key
        query = ManagementKey.objects.for_tenant(tenant_id)
    else:
        query = ManagementKey.objects.across_tenants().filter(tenant=None)
    row = query.select_for_update().filter(pk=key_id).first()
    if row is None:
        raise NotFound(f"there is no key {key_id}")
    return row


def _successor(old: ApiKey | ManagementKey, new_id: str, new_digest: str, now: datetime) -> ApiKey | ManagementKey:
    """Return an unsaved copy of `old` under a new id, with the same lifetime from now on."""
    new = copy.copy(old)
    new._state = ModelState()
    new.pk, new.digest, new.created_at, new.last_used_at = new_id, new_digest, now, None
    new.expires_at = now + (old.expires_at - old.created_at) if old.expires_at else None
    return new


def _noun(row: KeyFields) -> str:
    return "api_key" if isinstance(row, ApiKey) else "management_key"


def _view(row: ApiKey | ManagementKey) -> ApiKeyView | ManagementKeyView:
    return rows.api_key_view(row) if isinstance(row, ApiKey) else rows.management_key_view(row)


def _as_json(row: ApiKey | ManagementKey) -> dict[str, Any]:
    """Return a key as the audit trail keeps it: without its digest."""
    shown = {
        "name": row.name,
        "scopes": row.scopes,
        "ip_ranges": row.ip_ranges,
        "expires_at": row.expires_at.isoformat() if row.expires_at else None,
        "revoked_at": row.revoked_at.isoformat() if row.revoked_at else None,
        "replaced_by": row.replaced_by_id,
    }
    if isinstance(row, ApiKey):
        more: dict[str, Any] = {"project_id": str(row.project_id), "models": row.allowed_models}
        return shown | more | {"rpm": row.rpm, "tpm": row.tpm}
    return shown | {"role": row.role, "user_id": row.user_id}


def _change(action: str, row: ApiKey | ManagementKey, **sides: dict[str, Any]) -> Change:
    return Change(action=action, target_kind=_noun(row), target_id=row.pk, tenant_id=row.tenant_id, **sides)
