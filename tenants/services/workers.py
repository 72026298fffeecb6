"""Workers announce themselves, ack policy versions, drain, and are forgotten when they stay away."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from tenants import rows
from tenants.contracts import WORKER_LIVE_SECONDS, WORKERS_CHANNEL, Actor, WorkerAnnouncement, WorkerView
from tenants.errors import NotFound
from tenants.models import AbsentWorker, PolicyAck, Worker
from tenants.rules import values
from tenants.services import absent
from tenants.services.journal import Change, notify, write_down

_CARD = ("address", "model", "digest", "kv_bytes", "block_bytes", "max_context")
_MOST = (1 << 60) - 1


def announce(*, announcement: WorkerAnnouncement) -> WorkerView:
    """Take a worker's announcement or heartbeat; listeners hear of it only when something changed or it came back.

    One that had been forgotten is to erase what was erased meanwhile.

    Raises:
        Invalid: names the field and the fix.
    """
    view = _announce(_checked(announcement))
    # Once it is known to whoever erases next: until then that is written down for the absent, and read here.
    absent.take_up(worker_id=view.worker_id)
    return view


@transaction.atomic
def _announce(card: WorkerAnnouncement) -> WorkerView:
    now = timezone.now()
    row, is_new = Worker.objects.select_for_update().get_or_create(
        pk=card.worker_id, defaults={field: getattr(card, field) for field in _CARD} | {"last_seen_at": now}
    )
    was_away = row.last_seen_at < now - timedelta(seconds=WORKER_LIVE_SECONDS)
    is_changed = any(getattr(row, field) != getattr(card, field) for field in _CARD)
    for field in _CARD:
        setattr(row, field, getattr(card, field))
    row.last_seen_at = now
    if is_new or is_changed or was_away:
        row.announced_at = now
        _write_down("worker.announced", row, Actor("system", card.worker_id, f"worker {card.worker_id}"))
    row.save()
    return rows.worker_view(row)


def seen(*, worker_ids: Sequence[str]) -> int:
    """Count workers as heard of now, because the controller's own stream to them is alive; return how many."""
    return Worker.objects.filter(pk__in=worker_ids).update(last_seen_at=timezone.now())


@transaction.atomic
def mark_applied(
    *,
    worker_id: str,
    version: int,
    applied_at: datetime | float,
    over_bytes: int = 0,
    settle_seconds: float = 0.0,
) -> bool:
    """Record that a worker has applied a policy version, and with it all earlier ones.

    Args:
        worker_id: the worker.
        version: the version that it enforces.
        applied_at: when its step took it up; unix seconds or a time with a zone.
        over_bytes: device KV that was above the limits at that moment.
        settle_seconds: how long the worker thinks that it will take until nothing is.

    Returns:
        Whether this was news; a repeated ack, or one of an unknown worker, is not.
    """
    at = _moment(applied_at)
    row = Worker.objects.select_for_update().filter(pk=worker_id).first()
    if row is None:
        return False
    told = {"applied_at": at, "over_bytes": min(over_bytes, _MOST), "settle_seconds": settle_seconds}
    _, is_new = PolicyAck.objects.get_or_create(worker=row, version=version, defaults=told)
    if version > row.applied_version:
        row.applied_version, row.applied_at = version, at
        row.save(update_fields=["applied_version", "applied_at"])
    return is_new


def mark_settled(*, worker_id: str, version: int, settled_at: datetime | float) -> bool:
    """Record that nobody is above the limits of a version, or of an earlier one, on a worker that has applied it.

    Returns:
        Whether this was news.
    """
    ack = PolicyAck.objects.filter(worker_id=worker_id, version=version, settled_at=None)
    return ack.update(settled_at=_moment(settled_at)) > 0


def _moment(at: datetime | float) -> datetime:
    return at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)


@transaction.atomic
def set_draining(*, worker_id: str, draining: bool, actor: Actor) -> WorkerView:
    """Let a worker take no new requests, or take them again; what runs on it goes on.

    It lasts until it is undone, over restarts of the worker, or until the worker is forgotten. To a worker that is so
    already nothing happens.

    Raises:
        NotFound: there is no such worker.
    """
    row = Worker.objects.select_for_update().filter(pk=worker_id).first()
    if row is None:
        raise NotFound("there is no such worker")
    if row.draining != draining:
        row.draining = draining
        row.save(update_fields=["draining"])
        change = Change(
            action="worker.drain_started" if draining else "worker.drain_ended",
            target_kind="worker",
            target_id=row.pk,
            tenant_id=None,
            before={"draining": not draining},
            after={"draining": draining},
        )
        write_down(change, actor)
        notify(WORKERS_CHANNEL, row.pk)
    return rows.worker_view(row)


@transaction.atomic
def forget_stale(*, older_than_seconds: float = 3600.0, connected: Collection[str] = ()) -> list[str]:
    """Delete workers, with their acks, that have been silent for so long; return their ids.

    That they may come back with their disks is written down, see `absent`.

    Args:
        older_than_seconds: for how long they were last heard of.
        connected: who is kept, however long: the clock, or the whole machine, may have stood still since.
    """
    silent = Q(last_seen_at__lt=timezone.now() - timedelta(seconds=older_than_seconds)) & ~Q(pk__in=connected)
    gone = list(Worker.objects.select_for_update(skip_locked=True).filter(silent).order_by("pk"))
    for row in gone:
        _write_down("worker.forgotten", row, Actor("system", "controller", "controller"))
    names = [row.pk for row in gone]
    # Whose last absence is not over yet keeps its beginning.
    AbsentWorker.objects.bulk_create(
        [AbsentWorker(id=row.pk, model=row.model, last_seen_at=row.last_seen_at) for row in gone],
        ignore_conflicts=True,
    )
    Worker.objects.filter(pk__in=names).delete()  # their acks go with them
    return names


def _write_down(action: str, row: Worker, actor: Actor) -> None:
    after = {field: getattr(row, field) for field in _CARD}
    write_down(
        Change(action=action, target_kind="worker", target_id=row.pk, tenant_id=None, after=after),
        actor,
    )
    notify(WORKERS_CHANNEL, row.pk)


def _checked(card: WorkerAnnouncement) -> WorkerAnnouncement:
    return WorkerAnnouncement(
        worker_id=values.text("worker_id", card.worker_id, longest=100),
        address=values.text("address", card.address, longest=300),
        model=values.text("model", card.model, longest=200),
        digest=values.text("digest", card.digest, longest=64, shortest=0),
        kv_bytes=values.whole("kv_bytes", card.kv_bytes, low=1, high=_MOST),
        block_bytes=values.whole("block_bytes", card.block_bytes, low=1, high=_MOST),
        max_context=values.whole("max_context", card.max_context, low=1, high=(1 << 31) - 1),
    )
