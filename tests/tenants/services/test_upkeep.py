"""What may be late: expiry, last use, sweeping. Through the tasks that celery runs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.utils import timezone
from django_celery_beat.schedulers import DatabaseScheduler

from gateway.celery import app
from tenants import selectors, tasks
from tenants.contracts import Actor, TenantView, UsageEntry, WorkerView
from tenants.models import ApiKey, AuditEvent, ManagementKey, OutboxEvent, PolicyAck
from tenants.schedule import CELERY_BEAT_SCHEDULE
from tenants.services.keys import create_api_key, create_management_key
from tenants.services.usage import record_usage
from tenants.services.workers import mark_applied


def usage(tenant: TenantView, key_id: str, finished_at: float, request_id: str = "r") -> UsageEntry:
    """Return a usage entry of a key."""
    return msgspec.convert(
        {
            **dict.fromkeys(("session", "project_id"), ""),
            **dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "num_preemptions"), 1),
            **dict.fromkeys(("kv_device_byte_seconds", "queue_seconds", "ttft_seconds"), 0.0),
            "request_id": request_id,
            "tenant_id": tenant.id,
            "key_id": key_id,
            "model": "tiny",
            "worker_id": "w",
            "started_at": finished_at - 1,
            "finished_at": finished_at,
            "finish_reason": "stop",
        },
        UsageEntry,
    )


def test_expired_keys_are_retired_once(tenant: TenantView, actor: Actor) -> None:
    """Both kinds get their audit row, once; keys that still work are left alone."""
    create_api_key(tenant_id=tenant.id, name="old", actor=actor)
    create_management_key(name="old", role="operator", actor=actor)
    past = timezone.now() - timedelta(seconds=1)
    ApiKey.objects.across_tenants().update(expires_at=past)
    ManagementKey.objects.across_tenants().update(expires_at=past)
    create_api_key(tenant_id=tenant.id, name="new", actor=actor)
    assert tasks.expire_keys() == 2
    assert tasks.expire_keys() == 0
    assert {key.name: key.status for key in selectors.api_keys(tenant.id)} == {"old": "revoked", "new": "active"}
    actions = AuditEvent.objects.across_tenants().filter(action__endswith=".expired").values_list("action", flat=True)
    assert sorted(actions) == ["api_key.expired", "management_key.expired"]


def test_last_use_follows_the_ledger(make_tenant: Callable[..., TenantView], actor: Actor) -> None:
    """The newest record of a key gives its last use; neither an older one nor a stranger's moves it."""
    tenant, other = make_tenant("one"), make_tenant("two")
    key = create_api_key(tenant_id=tenant.id, name="k", actor=actor).key
    idle = create_api_key(tenant_id=tenant.id, name="idle", actor=actor).key
    now = timezone.now().timestamp()
    record_usage([usage(tenant, key.id, now - 10, "a"), usage(tenant, key.id, now - 20, "b")])
    record_usage([usage(other, idle.id, now, "c"), usage(tenant, "unknown", now, "d")])
    assert tasks.note_last_use() == 1
    assert tasks.note_last_use() == 0
    used = {seen.id: seen.last_used_at for seen in selectors.api_keys(tenant.id)}
    assert used[idle.id] is None
    assert used[key.id] is not None
    assert used[key.id].timestamp() == now - 10
    record_usage([usage(tenant, key.id, now - 5, "e")])
    assert tasks.note_last_use() == 1


def test_old_outbox_rows_and_acks_are_swept(tenant: TenantView, make_worker: Callable[..., WorkerView]) -> None:
    """What is young stays, and so does the ack of the version that a worker is at, however old."""
    make_worker("w")
    for version in (1, 2):
        mark_applied(worker_id="w", version=version, applied_at=timezone.now())
    before = OutboxEvent.objects.across_tenants().count()
    assert tasks.sweep_outbox() == 0
    OutboxEvent.objects.for_tenant(tenant.id).update(created_at=timezone.now() - timedelta(days=15))
    PolicyAck.objects.update(applied_at=timezone.now() - timedelta(days=31))
    assert tasks.sweep_outbox() == 2
    assert OutboxEvent.objects.across_tenants().count() == before - 1
    assert [ack.version for ack in PolicyAck.objects.all()] == [2]


def test_expired_sessions_are_swept(db: None) -> None:
    """A live session stays."""
    for seconds in (-1, 3600):
        session = SessionStore()
        session.set_expiry(timezone.now() + timedelta(seconds=seconds))
        session.save()
    tasks.sweep_sessions()
    assert Session.objects.count() == 1


@pytest.mark.django_db(transaction=True)  # the scheduler closes the connection that it finds
def test_beat_takes_the_schedule_up() -> None:
    """The scheduler that we run keeps times and expiry of every entry."""
    scheduled = DatabaseScheduler(app=app).schedule
    for name, entry in CELERY_BEAT_SCHEDULE.items():
        assert scheduled[name].task == entry["task"]
        assert scheduled[name].schedule.run_every.total_seconds() == entry["schedule"]
        assert scheduled[name].options["expires"] == entry["schedule"]


def test_the_schedule_names_real_tasks(settings: Any) -> None:
    """Beat would otherwise send what no worker knows, for ever."""
    app.loader.import_default_modules()
    assert settings.CELERY_BEAT_SCHEDULE == CELERY_BEAT_SCHEDULE
    for entry in CELERY_BEAT_SCHEDULE.values():
        assert entry["task"] in app.tasks
        assert entry["options"]["expire_seconds"] == entry["schedule"] >= 60
