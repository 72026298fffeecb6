"""Register and remove the prefixes of a share group.

What a tenant's owner registered stays with the group when the tenant is suspended or leaves it: other members rely on
it. Its owner removes it again once the tenant is back, an operator at any time.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from tenants import rows
from tenants.contracts import Actor, PrefixMessage, SharedPrefixView
from tenants.errors import Conflict, Forbidden, NotFound
from tenants.models import Policy, SharedPrefix
from tenants.rules import prefixes as rules
from tenants.services import versions
from tenants.services.journal import Change, write_down


@transaction.atomic
def register_prefix(
    *,
    group: str,
    name: str,
    messages: Sequence[PrefixMessage | Mapping[str, object]] = (),
    text: str = "",
    tenant_id: uuid.UUID | str = "",
    actor: Actor,
) -> SharedPrefixView:
    """Register the beginning of a chat (`messages`) or of a prompt (`text`) for a group. All its members may read it.

    Args:
        group: the group's name.
        name: of the prefix, unique in the group.
        messages: 1 to 64 of them, `PrefixMessage` or objects with role and content.
        text: instead of messages.
        tenant_id: the tenant whose owner does it, a member of the group; empty: an operator does.
        actor: who does it.

    Raises:
        Invalid: names the field and the fix; `messages.2.content` is the third message's.
        Conflict: the name is taken, the group is full, the tenant has registered its quota, or it is no member (any
            more).
        NotFound: there is no such group.
    """
    checked_name = rules.name(name)
    contents = rules.contents(messages, text)
    version = versions.next_version()
    _members_only(group, tenant_id)
    row = versions.locked_group(group)
    there = SharedPrefix.objects.for_group(group)
    _room_only(there, tenant_id)
    if there.filter(name=checked_name).exists():
        raise Conflict(f"the share group has a prefix {checked_name!r} already: choose another name")
    now = timezone.now()
    prefix = there.create(
        group=row,
        name=checked_name,
        messages=msgspec.to_builtins(contents.messages),
        text=contents.text,
        num_bytes=contents.num_bytes,
        sha256=contents.sha256,
        version=version,
        registered_by_id=tenant_id or None,
        created_by=actor.label[:254],
        created_at=now,
    )
    versions.save_group(row, version, now)
    write_down(_change("prefix.registered", prefix, after=_as_json(prefix)), actor)
    return rows.shared_prefix_view(prefix)


@transaction.atomic
def remove_prefix(*, group: str, prefix_id: uuid.UUID | str, tenant_id: uuid.UUID | str = "", actor: Actor) -> None:
    """Remove a registered prefix: requests that begin with it stop sharing it.

    Args:
        group: the group's name.
        prefix_id: the prefix.
        tenant_id: the tenant whose owner does it, a member of the group; empty: an operator does.
        actor: who does it.

    Raises:
        Forbidden: another tenant, or an operator, registered it.
        Conflict: the tenant is no member (any more).
        NotFound: there is no such group, or it has no such prefix.
    """
    version = versions.next_version()
    _members_only(group, tenant_id)
    row = versions.locked_group(group)
    prefix = SharedPrefix.objects.for_group(group).defer("messages", "text").filter(pk=_as_uuid(prefix_id)).first()
    if prefix is None:
        raise NotFound("there is no such prefix")
    if tenant_id and str(prefix.registered_by_id) != str(tenant_id):
        raise Forbidden("another member or an operator registered this prefix: an operator can remove it")
    write_down(_change("prefix.removed", prefix, before=_as_json(prefix)), actor)
    prefix.delete()
    versions.save_group(row, version, timezone.now())


def erase_prefixes(group: str, actor: Actor) -> None:
    """Delete all prefixes of a group that ends; call with the counter held."""
    there = SharedPrefix.objects.for_group(group)
    for prefix in there.defer("messages", "text").order_by("name"):
        write_down(_change("prefix.removed", prefix, before=_as_json(prefix)), actor)
    there.delete()


def _members_only(group: str, tenant_id: uuid.UUID | str) -> None:
    """Refuse a tenant whose policy does not name the group; with the counter held no policy changes meanwhile."""
    if not tenant_id:
        return
    named = Policy.objects.for_tenant(tenant_id).values_list("share_group", flat=True).first()
    if not named or named != group:
        raise Conflict(f"the tenant is no member of the share group {group!r}: an operator sets `share_group`")


def _room_only(there: QuerySet[SharedPrefix], tenant_id: uuid.UUID | str) -> None:
    """Refuse what exceeds a tenant's quota, or the group; with the group's row locked nobody registers meanwhile."""
    if tenant_id and there.filter(registered_by__id=tenant_id).count() >= rules.MOST_OF_TENANT:
        raise Conflict(
            f"the tenant has registered {rules.MOST_OF_TENANT} of the share group's {rules.MOST_PREFIXES} prefixes, "
            "which is the most for one member: remove one of its own first, or ask an operator to register it"
        )
    if there.count() >= rules.MOST_PREFIXES:
        fix = "remove one first"
        if tenant_id:
            fix += ", or ask an operator to remove one of another member"
        raise Conflict(f"the share group has {rules.MOST_PREFIXES} prefixes, which is the most: {fix}")


def _as_uuid(prefix_id: uuid.UUID | str) -> uuid.UUID:
    try:
        return prefix_id if isinstance(prefix_id, uuid.UUID) else uuid.UUID(prefix_id)
    except (ValueError, TypeError, AttributeError) as error:
        raise NotFound("there is no such prefix") from error


def _as_json(row: SharedPrefix) -> dict[str, Any]:
    """Return a prefix as the audit trail keeps it: never its contents."""
    return {"group": row.group_id, "name": row.name, "num_bytes": row.num_bytes, "sha256": row.sha256}


def _change(action: str, row: SharedPrefix, **sides: dict[str, Any]) -> Change:
    return Change(action=action, target_kind="prefix", target_id=str(row.pk), tenant_id=row.registered_by_id, **sides)
