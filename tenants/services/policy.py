"""Change a tenant's policy."""

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from tenants import rows, selectors
from tenants.contracts import POLICY_CHANNEL, Actor, PolicyView
from tenants.errors import NotFound, PolicyInvalid, StaleVersion
from tenants.models import Policy, ShareGroup
from tenants.rules import policy as rules
from tenants.services import versions
from tenants.services.journal import Change, notify, write_down


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
    row = Policy.objects.for_tenant(tenant_id).select_for_update().first()
    if row is None:
        raise NotFound("there is no such tenant")
    if row.version != expected_version:
        raise StaleVersion(expected_version, row.version)
    before = rows.policy_view(row)
    after = msgspec.structs.replace(rules.changed(before, changes), version=version)
    if after.share_group != before.share_group:
        check_share_group(after)
    if not overcommit:
        check_guarantees(before=before.kv_soft_bytes, after=after.kv_soft_bytes)
    save(row, after, timezone.now())
    extra = {"overcommit": True} if overcommit else {}
    write_down(
        Change(
            action="policy.changed",
            target_kind="policy",
            target_id=str(row.tenant_id),
            tenant_id=row.tenant_id,
            before=as_json(before),
            after=as_json(after) | extra,
        ),
        actor,
    )
    announce(version)
    return after


def save(row: Policy, view: PolicyView, at: datetime) -> None:
    """Store `view` in `row` and remember the version."""
    for field in (*rules.FIELDS, "version"):
        setattr(row, field, getattr(view, field))
    row.updated_at = at
    row.save()
    versions.record_version(view.version, row.tenant_id, at)


def announce(version: int) -> None:
    """Tell the controller and the web processes, which all read what is newer than they have."""
    notify(POLICY_CHANNEL, str(version))


def as_json(view: PolicyView) -> dict[str, Any]:
    """Return a policy as the audit trail keeps it."""
    return msgspec.to_builtins(view)


def check_share_group(view: PolicyView) -> None:
    """Check that the group which a policy names is there; call with the counter held, so that it stays."""
    name = view.share_group
    if name and not ShareGroup.objects.live().filter(name=name).exists():
        raise PolicyInvalid(
            "share_group",
            f"share_group must name a share group, and there is none named {name!r}: "
            "see /api/v1/share-groups/ for those there are, or leave it empty",
        )


def check_guarantees(*, before: int, after: int) -> None:
    """Check a raised guarantee, a tenant's or a share group's, against all others and the live pool.

    Call with the counter held, so that nobody else raises one meanwhile.
    """
    rules.check_guarantees(
        before=before, after=after, others=selectors.guaranteed_bytes() - before, pool=selectors.pool_bytes()
    )
