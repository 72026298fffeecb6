"""Erasures for workers that are forgotten: one that comes back with its disk erases what was erased meanwhile.

    forgotten ─▶ `AbsentWorker` ─▶ erasures are remembered for its model ─▶ it is back ─▶ they wait for it by name

A row is of a session and a model, not of a worker: fleets whose workers get new names leave many behind.
"""

import uuid
from collections.abc import Collection
from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from tenants.contracts import AbsentWorkerView, Actor
from tenants.models import AbsentWorker, LateErasure, SessionErasure
from tenants.services.sessions import KEPT_DAYS

MOST_LATE = 1000  # of one tenant and model; above it the older half becomes one erasure of all its sessions
MOST_ABSENT = 1000  # workers; those that were seen last are kept
_BATCH = 1000


def remember(
    *, tenant_id: uuid.UUID | str, session: str, models: Collection[str], actor: Actor
) -> list[AbsentWorkerView]:
    """Write down an erasure for the absent workers, of all models where none is named; return those workers.

    It is written, and seen by a worker that comes back, when this returns: no transaction may be open.
    """
    gone = AbsentWorker.objects.order_by("pk")
    if models:
        gone = gone.filter(model__in=models)
    found = list(gone)
    concerned = sorted({row.model for row in found})
    now = timezone.now()
    LateErasure.objects.across_tenants().bulk_create(
        [
            LateErasure(tenant_id=tenant_id, session=session, model=model, asked_at=now, asked_by=actor.label[:254])
            for model in concerned
        ],
        update_conflicts=True,
        unique_fields=["tenant", "model", "session"],
        update_fields=["asked_at", "asked_by"],
    )
    for model in concerned:
        _fold(tenant_id, model)
    return [AbsentWorkerView(worker_id=row.pk, last_seen_at=row.last_seen_at.timestamp()) for row in found]


@transaction.atomic
def take_up(*, worker_id: str) -> int:
    """Let the erasures since a forgotten worker was last seen wait for it by name; return how many.

    It is absent no more. Call this when whoever erases finds the worker among the known ones.
    """
    gone = AbsentWorker.objects.select_for_update().filter(pk=worker_id).first()
    if gone is None:
        return 0
    late = LateErasure.objects.across_tenants().filter(model=gone.model, asked_at__gte=gone.last_seen_at)
    taken = SessionErasure.objects.across_tenants().bulk_create(
        [
            SessionErasure(
                tenant_id=row.tenant_id,
                session=row.session,
                worker_id=worker_id,
                requested_at=row.asked_at,
                requested_by=row.asked_by,
            )
            for row in late.order_by("pk")
        ],
        batch_size=_BATCH,
        ignore_conflicts=True,
    )
    gone.delete()
    return len(taken)


def sweep() -> int:
    """Delete workers that have been absent for too long, and erasures that no absent worker missed; return how many."""
    old = timezone.now() - timedelta(days=KEPT_DAYS)
    num_gone = AbsentWorker.objects.filter(last_seen_at__lt=old).delete()[0]
    surplus = AbsentWorker.objects.order_by("-last_seen_at", "pk")[MOST_ABSENT:]
    num_gone += AbsentWorker.objects.filter(pk__in=list(surplus.values_list("pk", flat=True))).delete()[0]
    missed = AbsentWorker.objects.filter(model=OuterRef("model"), last_seen_at__lte=OuterRef("asked_at"))
    return num_gone + LateErasure.objects.across_tenants().filter(~Exists(missed)).delete()[0]


@transaction.atomic
def _fold(tenant_id: uuid.UUID | str, model: str) -> None:
    """Bound a tenant's rows: who missed an old one erases all the tenant's sessions, which costs computation alone."""
    mine = LateErasure.objects.for_tenant(tenant_id).filter(model=model)
    single = mine.exclude(session="").order_by("-asked_at", "-pk")
    if single.count() <= MOST_LATE:
        return
    edge = single[MOST_LATE // 2]
    # Locked first, so that two that fold at once do it one after the other.
    everything, _ = mine.select_for_update().get_or_create(
        tenant_id=edge.tenant_id,
        session="",
        model=model,
        defaults={"asked_at": edge.asked_at, "asked_by": edge.asked_by},
    )
    if everything.asked_at < edge.asked_at:
        mine.filter(pk=everything.pk).update(asked_at=edge.asked_at, asked_by=edge.asked_by)
    single.filter(asked_at__lte=edge.asked_at).delete()
