"""Boosts: change some limits of a tenant for a time; what the boost left goes back at its end.

A boost's start and its end are versions of the policy like any other, each in one transaction with the boost's own row.
The counter of versions is held first in both, so that of all who would end a boost exactly one does.
"""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from tenants import rows
from tenants.contracts import Actor, BoostView, PolicyView
from tenants.errors import Conflict, Invalid, NotFound, PolicyInvalid
from tenants.models import Boost
from tenants.rules import policy as rules
from tenants.rules import values
from tenants.services import policy as policy_service
from tenants.services import versions
from tenants.services.journal import Change, write_down
from tenants.services.policy import Deed

SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=30)
FIELDS = tuple(field for field in rules.FIELDS if field not in ("encrypt_disk", "share_group", "shadow"))
TIMER = Actor("system", "boosts", "end of a boost")
_ON_THE_WAY = timedelta(seconds=5)  # "in one minute" may have come here so late


@transaction.atomic
def start_boost(
    *,
    tenant_id: uuid.UUID | str,
    expected_version: int,
    changes: Mapping[str, object],
    ends_at: datetime,
    reason: str,
    actor: Actor,
    overcommit: bool = False,
) -> BoostView:
    """Change some limits of a tenant until `ends_at`, if its policy still is at `expected_version`.

    Args:
        tenant_id: the tenant.
        expected_version: the version of the policy that the caller has read.
        changes: limits of `PolicyView` and their values while the boost lasts, of any type a client may have sent.
        ends_at: 1 minute to 30 days from now.
        reason: why, for those who read it later.
        actor: who does it.
        overcommit: as for `set_policy`.

    Raises:
        Conflict: a boost is in force; the message names it. StaleVersion: the policy has moved on.
        Invalid: names the field and the fix; nothing was changed.
        NotFound: there is no such tenant.
    """
    why = values.text("reason", reason, longest=500)
    _check_end(ends_at)
    _check_fields(changes)
    version = versions.next_version()  # first: whoever holds the counter sees every change before it
    row = policy_service.locked(tenant_id, expected_version)
    _refuse_second(row.tenant_id)
    before = rows.policy_view(row)
    after = msgspec.structs.replace(rules.changed(before, changes), version=version)
    fields = policy_service.changed_fields(before, after)
    if not fields:
        raise PolicyInvalid(
            "changes", "the policy has these values already: name a limit and the value that it shall have"
        )
    policy_service.check(row, after, overcommit=overcommit)
    boost = Boost.objects.for_tenant(row.tenant_id).create(
        changes=_part(after, fields),
        before=_part(before, fields),
        reason=why,
        ends_at=ends_at,
        started_version=version,
        created_by=actor.label[:254],
    )
    details = {"boost": str(boost.pk), "ends_at": ends_at.isoformat(), "reason": why}
    policy_service.write(row, after, Deed("boost.started", actor, details | policy_service.flag(overcommit)))
    return _view(boost)


@transaction.atomic
def end_boost(*, tenant_id: uuid.UUID | str, boost_id: uuid.UUID | str, actor: Actor) -> BoostView:
    """End a boost before its time.

    Raises:
        NotFound: the tenant has no such boost.
        Conflict: it has ended already.
    """
    versions.hold_counter()
    boost = Boost.objects.for_tenant(tenant_id).select_for_update(of=("self",)).filter(pk=boost_id).first()
    if boost is None:
        raise NotFound("there is no such boost")
    if boost.ended_at is not None:
        raise Conflict(f"this boost has ended already, at {boost.ended_at:%Y-%m-%d %H:%M:%S} UTC")
    return _end(boost, actor)


def end_due_boosts(*, now: datetime | None = None) -> list[BoostView]:
    """End every boost whose time has come, each in a transaction of its own; return those that this call ended.

    Safe to call from any number of processes at once: whoever comes second finds nothing left to do.
    """
    at = now or timezone.now()
    due = Boost.objects.across_tenants().filter(ended_at=None, ends_at__lte=at).order_by("ends_at")
    ended = (_end_if_due(boost_id, at) for boost_id in list(due.values_list("pk", flat=True)))
    return [boost for boost in ended if boost is not None]


@transaction.atomic
def _end_if_due(boost_id: uuid.UUID, at: datetime) -> BoostView | None:
    versions.hold_counter()
    due = Boost.objects.across_tenants().filter(pk=boost_id, ended_at=None, ends_at__lte=at)
    boost = due.select_for_update(of=("self",)).first()
    return None if boost is None else _end(boost, TIMER)


def _end(boost: Boost, actor: Actor) -> BoostView:
    """Put back what is still as the boost left it; call with the counter and the boost's row held."""
    row = policy_service.locked(boost.tenant_id)
    current = rows.policy_view(row)
    after = put_back(current, boost.changes, boost.before)
    deed = Deed("boost.ended", actor, {"boost": str(boost.pk)})
    boost.ended_at = max(timezone.now(), boost.started_at)
    if policy_service.changed_fields(current, after):
        boost.ended_version = versions.next_version()
        # Unchecked: its guarantee has stayed promised, and its group is what it was.
        policy_service.write(row, msgspec.structs.replace(after, version=boost.ended_version), deed)
    else:
        write_down(
            Change(
                action=deed.action,
                target_kind="policy",
                target_id=str(boost.tenant_id),
                tenant_id=boost.tenant_id,
                after=dict(deed.details),
            ),
            actor,
        )
    boost.save(update_fields=["ended_at", "ended_version"])
    return _view(boost)


def put_back(current: PolicyView, changes: Mapping[str, Any], before: Mapping[str, Any]) -> PolicyView:
    """Return `current` with each field that is still as a boost left it back at its value before.

    Where somebody has written the other of guarantee and ceiling meanwhile, the one that goes back does so as far as
    that allows: what was written stays, and the guarantee stays within the ceiling.
    """
    back = {field: value for field, value in before.items() if getattr(current, field) == changes[field]}
    if "kv_hard_bytes" in back and "kv_soft_bytes" not in back:
        back["kv_hard_bytes"] = max(back["kv_hard_bytes"], current.kv_soft_bytes)
    elif "kv_soft_bytes" in back and "kv_hard_bytes" not in back:
        back["kv_soft_bytes"] = min(back["kv_soft_bytes"], current.kv_hard_bytes)
    return msgspec.structs.replace(current, **back)


def _check_end(ends_at: datetime) -> None:
    lasts = ends_at - timezone.now()
    if not SHORTEST - _ON_THE_WAY <= lasts <= LONGEST:
        raise Invalid("ends_at", "a boost lasts from 1 minute to 30 days: choose an end within that time from now")


def _check_fields(changes: Mapping[str, object]) -> None:
    if not changes:
        raise PolicyInvalid("changes", f"name at least one limit to change: {', '.join(FIELDS)}")
    for field in changes:
        if field not in FIELDS:
            raise PolicyInvalid(field, f"{field} is no limit that a boost changes; there are {', '.join(FIELDS)}")


def _refuse_second(tenant_id: uuid.UUID) -> None:
    boost = Boost.objects.for_tenant(tenant_id).filter(ended_at=None).first()
    if boost is not None:
        raise Conflict(
            f"the boost {boost.pk} ({boost.reason}) is in force until {boost.ends_at:%Y-%m-%d %H:%M:%S} UTC: "
            "end it first, or wait for its end"
        )


def _part(policy: PolicyView, fields: tuple[str, ...]) -> dict[str, Any]:
    return {field: getattr(policy, field) for field in fields}


def _view(boost: Boost) -> BoostView:
    return rows.boost_view(boost)
