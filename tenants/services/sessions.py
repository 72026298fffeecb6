"""Erase sessions for certain: what a worker has not confirmed is written down first, and asked for until it has.

    begin ─▶ a row for each worker ─▶ the workers are asked ─▶ settle: rows of the confirmed go, the audit is told

A crash at any point leaves rows, which `gateway.tasks` delivers.
"""

import uuid
from collections.abc import Collection, Sequence
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from tenants.contracts import Actor, PendingErasure
from tenants.errors import Conflict
from tenants.models import SessionErasure
from tenants.services.journal import Change, write_down

MOST_PENDING = 10_000  # of one tenant
KEPT_DAYS = 400  # a worker that has stayed away for longer does not come back
_DELIVERY = Actor("system", "sessions", "delivery of erasures")


@transaction.atomic
def begin_erasure(*, tenant_id: uuid.UUID | str, session: str, workers: Collection[str], actor: Actor) -> None:
    """Write down that `workers` are to erase a session, all sessions where it is empty.

    Raises:
        Conflict: too many erasures of the tenant wait for workers that are away.
    """
    rows = SessionErasure.objects.for_tenant(tenant_id)
    if rows.count() + len(workers) > MOST_PENDING:
        raise Conflict(f"{MOST_PENDING} erasures wait for workers that are away: erase more once they are back")
    SessionErasure.objects.across_tenants().bulk_create(
        [
            SessionErasure(tenant_id=tenant_id, session=session, worker_id=worker_id, requested_by=actor.label[:254])
            for worker_id in workers
        ],
        ignore_conflicts=True,
    )


@transaction.atomic
def settle_erasure(
    *,
    tenant_id: uuid.UUID | str,
    session: str,
    confirmed: Collection[str],
    waiting: Sequence[str],
    was_there: bool,
    actor: Actor,
) -> None:
    """Take back what workers have confirmed, and tell the audit trail, unless nobody had such a session.

    Args:
        tenant_id: the tenant.
        session: the session.
        confirmed: workers that have erased it, or never had it.
        waiting: workers that have yet to say so.
        was_there: some worker had it.
        actor: who wanted it erased.
    """
    rows = SessionErasure.objects.for_tenant(tenant_id)
    rows.filter(session=session, worker_id__in=confirmed).delete()
    if was_there or waiting:
        write_down(_change(tenant_id, session, waiting), actor)


@transaction.atomic
def delivered(*, erasure: PendingErasure, was_there: bool) -> None:
    """Take back an erasure that its worker has confirmed late."""
    gone, _ = SessionErasure.objects.for_tenant(erasure.tenant_id).filter(pk=erasure.id).delete()
    if gone and was_there:
        write_down(_change(erasure.tenant_id, erasure.session, (), worker_id=erasure.worker_id), _DELIVERY)


def sweep_erasures() -> int:
    """Delete erasures whose worker has stayed away for `KEPT_DAYS`; return how many."""
    old = timezone.now() - timedelta(days=KEPT_DAYS)
    return SessionErasure.objects.across_tenants().filter(requested_at__lt=old).delete()[0]


def _change(tenant_id: uuid.UUID | str, session: str, waiting: Sequence[str], worker_id: str = "") -> Change:
    told: dict[str, object] = {"session": session, "waiting_for": list(waiting)}
    return Change(
        action="session.erased",
        target_kind="session",
        target_id=session[:128],
        tenant_id=tenant_id if isinstance(tenant_id, uuid.UUID) else uuid.UUID(tenant_id),
        after=told | ({"worker_id": worker_id} if worker_id else {}),
    )
