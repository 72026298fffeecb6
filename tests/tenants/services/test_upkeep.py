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
from tenants.models import ApiKey, AuditEvent, ManagementKey, OutboxEvent, PolicyAck, PolicyVersion
from tenants.schedule import CELERY_BEAT_SCHEDULE
from tenants.services.keys import create_api_key, create_management_key
from tenants.services.policy import set_policy
from tenants.services.share_groups import create_share_group, update_share_group
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


def test_versions_can_be_reverted_to_for_400_days(tenant: TenantView, actor: Actor) -> None:
    """A tenant's versions stay 400 days, a share group's 30, and what is in force for ever."""
    group = create_share_group(name="desk", description="", kv_soft_bytes=0, kv_hard_bytes=1 << 20, actor=actor)
    for size in (2, 3):
        group = update_share_group(
            name="desk", expected_version=group.version, changes={"kv_hard_bytes": size << 20}, actor=actor
        )
    made = [selectors.policy(tenant.id)]
    for running in (5, 6, 7):
        assert made[-1] is not None
        changes = {"max_running": running}
        made.append(set_policy(tenant_id=tenant.id, expected_version=made[-1].version, changes=changes, actor=actor))
    versions = PolicyVersion.objects.across_tenants()
    assert tasks.sweep_outbox() == 0
    versions.update(created_at=timezone.now() - timedelta(days=399))
    assert tasks.sweep_outbox() == 2  # the group's, but for the one that is in force
    of_tenant = versions.filter(tenant_id=tenant.id).order_by("version")
    assert [row.version for row in of_tenant] == [policy.version for policy in made if policy is not None]
    versions.update(created_at=timezone.now() - timedelta(days=401))
    assert tasks.sweep_outbox() == 3
    left = sorted(versions.values_list("version", flat=True))
    assert left == sorted([made[-1].version if made[-1] else 0, group.version])
    assert selectors.policy_acks(group.version) is not None


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
        assert entry["options"]["expire_seconds"] == entry["schedule"] >= 30
