"""Change a tenant's policy, and bring it back to what it was at an earlier version."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from tenants import rows, selectors
from tenants.contracts import POLICY_CHANNEL, Actor, PolicyView, ShadowLimits
from tenants.errors import NotFound, PolicyInvalid, StaleVersion
from tenants.models import Policy, PolicyVersion, ShareGroup
from tenants.models.tenant import new_secret
from tenants.rules import policy as rules
from tenants.services import versions
from tenants.services.journal import Change, notify, write_down


@dataclass(frozen=True, slots=True)
class Deed:
    """What a change of a policy was, and whose, as history and audit trail tell it."""

    action: str
    actor: Actor
    details: Mapping[str, object] = field(default_factory=dict)  # what the audit trail says beside the policy


@transaction.atomic
def set_policy(
    *,
    tenant_id: uuid.UUID | str,
    expected_version: int,
    changes: Mapping[str, object],
    actor: Actor,
    overcommit: bool = False,
) -> PolicyView:
    """Change some fields of a tenant's policy, if it still is at `expected_version`.

    Args:
        tenant_id: the tenant.
        expected_version: the version that the caller has read.
        changes: fields of `PolicyView` and their new values, of any type a client may have sent.
        actor: who does it.
        overcommit: allow guarantees that do not all fit the pool; they then scale down pro rata.

    Returns:
        The policy as it now is, with its new version.

    Raises:
        StaleVersion: somebody else changed it first; nothing was changed.
        PolicyInvalid: names the field and the fix; nothing was changed.
        NotFound: there is no such tenant.
    """
    if not changes:
        raise PolicyInvalid("", f"name at least one field to change: {', '.join(rules.FIELDS)}")
    version = versions.next_version()  # first: whoever holds the counter sees every change before it
    row = locked(tenant_id, expected_version)
    after = msgspec.structs.replace(rules.changed(rows.policy_view(row), changes), version=version)
    check(row, after, overcommit=overcommit)
    return write(row, after, Deed("policy.changed", actor, flag(overcommit)))


@transaction.atomic
def revert_policy(
    *,
    tenant_id: uuid.UUID | str,
    version: int,
    expected_version: int,
    actor: Actor,
    overcommit: bool = False,
) -> PolicyView:
    """Make a new version whose fields are those of an earlier one; it passes the same checks as any change.

    A field that came into being after that version keeps its value.

    Args:
        tenant_id: the tenant.
        version: the one to go back to, of the tenant's own history.
        expected_version: the version that the caller has read.
        actor: who does it.
        overcommit: as for `set_policy`.

    Raises:
        StaleVersion, PolicyInvalid, NotFound: as `set_policy`; `version` where it is not of the tenant's history, or
            the policy is as it was then.
    """
    new_version = versions.next_version()
    row = locked(tenant_id, expected_version)
    made = _of_history(row.tenant_id, version)
    before = rows.policy_view(row)
    changes = {name: value for name, value in (made.policy or {}).items() if name in rules.FIELDS}
    changes["shadow"] = msgspec.convert(changes["shadow"], ShadowLimits) if "shadow" in changes else before.shadow
    after = msgspec.structs.replace(rules.changed(before, changes), version=new_version)
    if not changed_fields(before, after):
        raise PolicyInvalid("version", f"the policy is as it was at version {version}: there is nothing to bring back")
    check(row, after, overcommit=overcommit)
    return write(row, after, Deed("policy.reverted", actor, {"reverted_to": version} | flag(overcommit)))


def locked(tenant_id: uuid.UUID | str, expected_version: int | None = None) -> Policy:
    """Return a tenant's policy row, locked to the end of the transaction; call with the counter held.

    Raises:
        NotFound: there is no such tenant.
        StaleVersion: it is not at `expected_version`, where one is given.
    """
    row = Policy.objects.for_tenant(tenant_id).select_for_update().first()
    if row is None:
        raise NotFound("there is no such tenant")
    if expected_version is not None and row.version != expected_version:
        raise StaleVersion(expected_version, row.version)
    return row


def check(row: Policy, after: PolicyView, *, overcommit: bool) -> None:
    """Check a changed policy against what else there is: a group that is new to it, a guarantee that rises.

    Raises:
        PolicyInvalid: names the field and the fix.
    """
    before = rows.policy_view(row)
    if after.share_group != before.share_group:
        check_share_group(after)
    if not overcommit:
        promised = selectors.promised_bytes(row.tenant_id, before.kv_soft_bytes)
        check_guarantees(before=before.kv_soft_bytes, after=after.kv_soft_bytes, own=promised)


def write(row: Policy, after: PolicyView, deed: Deed) -> PolicyView:
    """Store a changed policy under its new version, write it down and announce it."""
    before = rows.policy_view(row)
    save(row, after, deed, changed_fields(before, after))
    change = Change(
        action=deed.action,
        target_kind="policy",
        target_id=str(row.tenant_id),
        tenant_id=row.tenant_id,
        before=as_json(before),
        after=as_json(after) | dict(deed.details),
    )
    write_down(change, deed.actor)
    announce(after.version)
    return after


def save(row: Policy, view: PolicyView, deed: Deed, changed: tuple[str, ...] = ()) -> None:
    """Store `view` in `row` and in the tenant's history."""
    at = timezone.now()
    for name in (*rules.FIELDS, "version"):
        setattr(row, name, getattr(view, name))
    row.shadow = msgspec.to_builtins(view.shadow)
    if row.encrypt_disk != bool(row.disk_seed):
        row.disk_seed = new_secret() if row.encrypt_disk else b""
    row.updated_at = at
    row.save()
    made = PolicyVersion(
        version=view.version,
        created_at=at,
        policy=as_json(view),
        action=deed.action,
        changed_by=deed.actor.label[:254],
        changed=list(changed),
    )
    versions.record_version(made, row.tenant_id)


def changed_fields(before: PolicyView, after: PolicyView) -> tuple[str, ...]:
    """Return the names of the fields that differ, in the order of the policy."""
    return tuple(name for name in rules.FIELDS if getattr(before, name) != getattr(after, name))


def _of_history(tenant_id: uuid.UUID, version: int) -> PolicyVersion:
    is_version = isinstance(version, int) and not isinstance(version, bool) and 0 < version < 1 << 63
    history = PolicyVersion.objects.for_tenant(tenant_id).filter(policy__isnull=False)
    made = history.filter(version=version).first() if is_version else None
    if made is None:
        raise PolicyInvalid(
            "version", f"{version!r} is no version of this tenant's history: see policy/history/ for those there are"
        )
    return made


def announce(version: int) -> None:
    """Tell the controller and the web processes, which all read what is newer than they have."""
    notify(POLICY_CHANNEL, str(version))


def flag(overcommit: bool) -> dict[str, object]:
    """Return what the audit trail says of the flag."""
    return {"overcommit": True} if overcommit else {}


def as_json(view: PolicyView) -> dict[str, Any]:
    """Return a policy as the audit trail keeps it."""
    plain: dict[str, Any] = msgspec.to_builtins(view)
    return plain


def check_share_group(view: PolicyView) -> None:
    """Check that the group which a policy names is there; call with the counter held, so that it stays."""
    name = view.share_group
    if name and not ShareGroup.objects.live().filter(name=name).exists():
        raise PolicyInvalid(
            "share_group",
            f"share_group must name a share group, and there is none named {name!r}: "
            "see /api/v1/share-groups/ for those there are, or leave it empty",
        )


def check_guarantees(*, before: int, after: int, own: int | None = None) -> None:
    """Check a raised guarantee, a tenant's or a share group's, against all others and the live pool.

    Call with the counter held, so that nobody else raises one meanwhile.

    Args:
        before: the guarantee until now.
        after: the one wanted.
        own: what its owner is promised in all, where that is more than `before`, see `selectors.promised_bytes`.
    """
    others = selectors.guaranteed_bytes() - (before if own is None else own)
    rules.check_guarantees(before=before, after=after, others=others, pool=selectors.pool_bytes())
