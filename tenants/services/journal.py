"""What every write leaves behind: an audit row, an outbox row and a NOTIFY, in the caller's transaction."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.db import connection

from tenants.contracts import Actor
from tenants.models import AuditEvent, OutboxEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one thing. `before` and `after` are JSON without secrets; None: it was not, or is no more."""

    action: str  # noun.verb
    target_kind: str
    target_id: str
    tenant_id: uuid.UUID | None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


def write_down(change: Change, actor: Actor) -> None:
    """Add the audit row and the outbox row."""
    AuditEvent.objects.across_tenants().create(
        actor_kind=actor.kind,
        actor_id=actor.id[:64],
        actor_label=actor.label[:254],
        action=change.action,
        target_kind=change.target_kind,
        target_id=change.target_id,
        tenant_id=change.tenant_id,
        before=change.before,
        after=change.after,
    )
    OutboxEvent.objects.across_tenants().create(
        topic=change.action,
        tenant_id=change.tenant_id,
        payload={"target": change.target_id, "after": change.after},
    )


def notify(channel: str, payload: str) -> None:
    """Tell the listeners; Postgres delivers when, and only when, the transaction commits."""
    assert connection.in_atomic_block, "a NOTIFY outside the transaction could outrun the change"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])
