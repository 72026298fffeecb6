"""Create, change and remove share groups. Operators only: what a caller may do is checked where the call comes in."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.utils import timezone

from tenants import selectors
from tenants.contracts import Actor, ShareGroupView
from tenants.errors import Conflict, Invalid, StaleVersion
from tenants.models import Policy, ShareGroup
from tenants.models.tenant import is_slug, new_secret
from tenants.rules import share_groups as rules
from tenants.services import policy as policy_service
from tenants.services import versions
from tenants.services.journal import Change, write_down
from tenants.services.prefixes import erase_prefixes

_MOST_NAMED = 20  # tenants in an error's message


@transaction.atomic
def create_share_group(
    *,
    name: str,
    description: str,
    kv_soft_bytes: int,
    kv_hard_bytes: int,
    actor: Actor,
    overcommit: bool = False,
) -> ShareGroupView:
    """Create a share group with a secret of its own. The name of a removed group may be used again.

    Args:
        name: 1 to 40 of a-z, 0-9 and inner dashes; it never changes.
        description: what people read.
        kv_soft_bytes: device KV guaranteed to the group's registered prefixes, fleet-wide.
        kv_hard_bytes: their ceiling.
        actor: who does it.
        overcommit: allow guarantees that do not all fit the pool; they then scale down pro rata.

    Raises:
        Invalid: names the field and the fix.
        Conflict: there is one of that name.
    """
    if not is_slug(name):
        raise Invalid("name", "name must have 1 to 40 characters of a-z, 0-9 and inner dashes")
    wanted = {"description": description, "kv_soft_bytes": kv_soft_bytes, "kv_hard_bytes": kv_hard_bytes}
    fields = rules.changed(rules.GroupFields(), wanted)
    version = versions.next_version()  # its lock also makes the checks for the name and the guarantees final
    row = ShareGroup.objects.filter(name=name).first() or ShareGroup(name=name, removed=True)
    if not row.removed:
        raise Conflict(f"there is a share group {name!r} already: choose another name")
    if not overcommit:
        policy_service.check_guarantees(before=0, after=fields.kv_soft_bytes)
    row.secret, row.removed, row.created_at = new_secret(), False, timezone.now()
    _store(row, fields, version)
    write_down(_change("share_group.created", name, overcommit=overcommit, after=_as_json(row)), actor)
    return _view(name)


@transaction.atomic
def update_share_group(
    *, name: str, expected_version: int, changes: Mapping[str, object], actor: Actor, overcommit: bool = False
) -> ShareGroupView:
    """Change a group's `description`, `kv_soft_bytes` or `kv_hard_bytes`, if it still is at `expected_version`.

    Raises:
        StaleVersion: somebody else changed it, or one of its prefixes, first; nothing was changed.
        Invalid: names the field and the fix; nothing was changed.
        NotFound: there is no such group.
    """
    if not changes:
        raise Invalid("", f"name at least one field to change: {', '.join(rules.FIELDS)}")
    version = versions.next_version()  # first: whoever holds the counter sees every change before it
    row = versions.locked_group(name)
    if row.version != expected_version:
        raise StaleVersion(expected_version, row.version, "share group")
    before = _as_json(row)
    after = rules.changed(_fields(row), changes)
    if not overcommit:
        policy_service.check_guarantees(before=row.kv_soft_bytes, after=after.kv_soft_bytes)
    _store(row, after, version)
    change = _change("share_group.changed", name, overcommit=overcommit, before=before, after=_as_json(row))
    write_down(change, actor)
    return _view(name)


@transaction.atomic
def remove_share_group(*, name: str, actor: Actor, detach: bool = False, expected_version: int | None = None) -> None:
    """Remove a group with its prefixes and its secret, so that nothing of it can be found again.

    Args:
        name: the group.
        actor: who does it.
        detach: take it out of the policies that name it, each with a version of its own, in the same transaction.
        expected_version: the version that the caller has read; None: whatever it is.

    Raises:
        Conflict: policies name it; the message says whose.
        StaleVersion: it has changed since `expected_version`.
        NotFound: there is no such group.
    """
    versions.hold_counter()
    row = versions.locked_group(name)
    if expected_version is not None and row.version != expected_version:
        raise StaleVersion(expected_version, row.version, "share group")
    members = list(Policy.objects.across_tenants().filter(share_group=name).select_related("tenant"))
    if members and not detach:
        raise Conflict(_named_by(name, sorted(policy.tenant.slug for policy in members)))
    for policy in members:
        policy_service.set_policy(
            tenant_id=policy.tenant_id, expected_version=policy.version, changes={"share_group": ""}, actor=actor
        )
    before = _as_json(row)
    erase_prefixes(name, actor)
    row.secret, row.removed = b"", True
    row.description, row.kv_soft_bytes, row.kv_hard_bytes = "", 0, 0
    versions.save_group(row, versions.next_version(), timezone.now())
    write_down(_change("share_group.removed", name, before=before), actor)


def _named_by(name: str, slugs: list[str]) -> str:
    more = f" and {len(slugs) - _MOST_NAMED} more" if len(slugs) > _MOST_NAMED else ""
    return (
        f"policies name the share group {name!r}: those of {', '.join(slugs[:_MOST_NAMED])}{more}; "
        "take it out of them first, or remove it with detach=true"
    )


def _fields(row: ShareGroup) -> rules.GroupFields:
    return rules.GroupFields(
        description=row.description, kv_soft_bytes=row.kv_soft_bytes, kv_hard_bytes=row.kv_hard_bytes
    )


def _store(row: ShareGroup, fields: rules.GroupFields, version: int) -> None:
    row.description = fields.description
    row.kv_soft_bytes, row.kv_hard_bytes = fields.kv_soft_bytes, fields.kv_hard_bytes
    versions.save_group(row, version, timezone.now())


def _view(name: str) -> ShareGroupView:
    view = selectors.share_group(name)
    assert view is not None, "it was stored in this transaction"
    return view


def _as_json(row: ShareGroup) -> dict[str, Any]:
    return {"name": row.name, "version": row.version, **asdict(_fields(row))}


def _change(action: str, name: str, *, overcommit: bool = False, **sides: dict[str, Any]) -> Change:
    if overcommit:
        sides["after"] = sides["after"] | {"overcommit": True}
    return Change(action=action, target_kind="share_group", target_id=name, tenant_id=None, **sides)
