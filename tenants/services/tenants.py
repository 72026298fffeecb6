"""Create and change tenants."""

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Count

from tenants import rows
from tenants.contracts import KEYS_CHANNEL, TENANT_COLOURS, Actor, TenantView
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Policy, Project, Tenant
from tenants.models.tenant import is_slug
from tenants.rules import policy as policy_rules
from tenants.rules import values
from tenants.services import policy as policy_service
from tenants.services import versions
from tenants.services.journal import Change, notify, write_down

FIRST_PROJECT = "default"


@transaction.atomic
def create_tenant(
    *,
    slug: str,
    name: str,
    actor: Actor,
    time_zone: str = "UTC",
    policy: Mapping[str, object] | None = None,
) -> TenantView:
    """Create a tenant with its secret, its policy and a project named `default`.

    Args:
        slug: 1 to 40 of a-z, 0-9 and inner dashes; it never changes.
        name: what people read.
        actor: who does it.
        time_zone: of its calendar months.
        policy: fields that differ from the default policy.

    Raises:
        Invalid: names the field and the fix.
        Conflict: the slug is taken.
    """
    if not is_slug(slug):
        raise Invalid("slug", "slug must have 1 to 40 characters of a-z, 0-9 and inner dashes")
    checked_name = values.text("name", name, longest=120)
    zone = values.time_zone("time_zone", time_zone)
    version = versions.next_version()  # its lock also makes the checks for slug and colour final
    if Tenant.objects.filter(slug=slug).exists():
        raise Conflict(f"there is a tenant {slug!r} already: choose another slug")
    row = Tenant.objects.create(slug=slug, name=checked_name, time_zone=zone, colour=_least_used_colour())
    Project.objects.for_tenant(row.id).create(name=FIRST_PROJECT)
    first = policy_rules.changed(policy_rules.DEFAULT, policy or {})
    policy_service.check_share_group(first)
    policy_service.check_guarantees(before=0, after=first.kv_soft_bytes)
    first = msgspec.structs.replace(first, version=version)
    policy_service.save(Policy(tenant=row), first, policy_service.Deed("tenant.created", actor))
    after = _as_json(row) | {"policy": policy_service.as_json(first)}
    write_down(_change("tenant.created", row, after=after), actor)
    policy_service.announce(version)
    return rows.tenant_view(row)


@transaction.atomic
def update_tenant(*, tenant_id: uuid.UUID | str, changes: Mapping[str, object], actor: Actor) -> TenantView:
    """Change a tenant's `name`, `time_zone` or `status`; a suspended tenant's keys stop working at once.

    Raises:
        Invalid: names the field and the fix.
        NotFound: there is no such tenant.
    """
    row = Tenant.objects.select_for_update().filter(pk=tenant_id).first()
    if row is None:
        raise NotFound("there is no such tenant")
    before = _as_json(row)
    for field, value in changes.items():
        setattr(row, field, _check(field, value))
    after = _as_json(row)
    if after == before:
        return rows.tenant_view(row)
    row.save(update_fields=list(changes))
    write_down(_change("tenant.changed", row, before=before, after=after), actor)
    notify(KEYS_CHANNEL, f"tenant:{row.id}")
    return rows.tenant_view(row)


def _check(field: str, value: object) -> str:
    if field == "name":
        return values.text(field, value, longest=120)
    if field == "time_zone":
        return values.time_zone(field, value)
    if field == "status":
        return values.choice(field, value, ("active", "suspended"))
    raise Invalid(field, f"{field} is no field that changes; there are name, time_zone, status")


def _least_used_colour() -> int:
    """Return the first of the least used colours: the first tenants all differ."""
    used = dict(Tenant.objects.values_list("colour").annotate(n=Count("id")))
    return min(range(TENANT_COLOURS), key=lambda colour: (used.get(colour, 0), colour))


def _as_json(row: Tenant) -> dict[str, Any]:
    return {"slug": row.slug, "name": row.name, "time_zone": row.time_zone, "status": str(row.status)}


def _change(action: str, row: Tenant, **sides: dict[str, Any]) -> Change:
    return Change(action=action, target_kind="tenant", target_id=str(row.id), tenant_id=row.id, **sides)
