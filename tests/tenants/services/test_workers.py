"""Workers announce themselves, ack versions and are forgotten."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from gateway.database import conninfo
from tenants import selectors
from tenants.contracts import WORKERS_CHANNEL, Actor, TenantView, WorkerAnnouncement, WorkerView
from tenants.errors import Invalid, NotFound
from tenants.models import AuditEvent, PolicyAck, Worker
from tenants.services.policy import set_policy
from tenants.services.workers import announce, forget_stale, mark_applied, seen, set_draining

CARD = WorkerAnnouncement(
    worker_id="worker-0",
    address="127.0.0.1:7070",
    model="tiny",
    digest="d" * 64,
    kv_bytes=1 << 30,
    block_bytes=1 << 14,
    max_context=2048,
)


def grow_silent(worker_id: str, seconds: float) -> None:
    """Pretend that a worker was last heard of so long ago."""
    Worker.objects.filter(pk=worker_id).update(last_seen_at=timezone.now() - timedelta(seconds=seconds))


def test_an_announced_worker_is_live(db: None) -> None:
    """Its card is what it sent, its model is served, its memory counts."""
    view = announce(announcement=CARD)
    assert selectors.live_workers() == [view]
    assert (view.address, view.kv_bytes, view.draining) == (CARD.address, CARD.kv_bytes, False)
    assert view.last_seen_at == pytest.approx(time.time(), abs=10)
    assert selectors.served_models() == ["tiny"]
    assert selectors.pool_bytes() == CARD.kv_bytes


def test_a_silent_worker_is_not_live_until_it_is_heard_again(db: None) -> None:
    """Neither heartbeat nor the controller's stream for 30 s: gone; either brings it back."""
    announce(announcement=CARD)
    for wake in (lambda: announce(announcement=CARD), lambda: seen(worker_ids=["worker-0", "unknown"])):
        grow_silent("worker-0", 31)
        assert selectors.live_workers() == []
        assert selectors.served_models() == []
        assert selectors.pool_bytes() == 0
        wake()
        assert len(selectors.live_workers()) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", ""),
        ("worker_id", "a\0"),
        ("address", " "),
        ("model", "x" * 201),
        ("kv_bytes", 0),
        ("kv_bytes", 2**63),
        ("block_bytes", -1),
        ("max_context", 0),
        ("max_context", 2**31),
    ],
)
def test_a_wrong_card_is_refused_by_field(db: None, field: str, value: Any) -> None:
    """Nothing wrong is dialled or divided by."""
    with pytest.raises(Invalid) as caught:
        announce(announcement=msgspec.structs.replace(CARD, **{field: value}))
    assert caught.value.field == field
    assert not Worker.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_only_a_change_is_announced_further() -> None:
    """A first card, a new address and a return are news; a heartbeat is none."""
    with psycopg.connect(conninfo(connection.settings_dict), autocommit=True) as listener:
        listener.execute(f"LISTEN {WORKERS_CHANNEL}")
        announce(announcement=CARD)
        announce(announcement=CARD)
        announce(announcement=msgspec.structs.replace(CARD, address="127.0.0.1:7071"))
        grow_silent("worker-0", 31)
        announce(announcement=msgspec.structs.replace(CARD, address="127.0.0.1:7071"))
        announce(announcement=msgspec.structs.replace(CARD, worker_id="last"))
        heard = [note.payload for note in listener.notifies(timeout=60, stop_after=4)]
    assert heard == ["worker-0", "worker-0", "worker-0", "last"]
    assert AuditEvent.objects.across_tenants().filter(action="worker.announced").count() == 4


@pytest.mark.django_db(transaction=True)
def test_one_worker_announced_twice_at_once_is_one_row(in_threads: Callable[..., list[Any]]) -> None:
    """A retry that overtakes its first try does no harm."""
    results = in_threads(*[lambda: announce(announcement=CARD)] * 6)
    assert all(isinstance(result, WorkerView) for result in results)
    assert Worker.objects.count() == 1


def test_acks_show_how_far_a_version_has_come(
    tenant: TenantView, make_worker: Callable[..., WorkerView], actor: Actor
) -> None:
    """The slowest live worker gives the time, once all have applied it; a later ack counts for earlier versions."""
    make_worker("one")
    make_worker("two")
    version = selectors.policy_version()
    policy = set_policy(tenant_id=tenant.id, expected_version=version, changes={"rpm": 1}, actor=actor)
    acks = selectors.policy_acks(policy.version)
    assert acks is not None
    assert (acks.applied, acks.of, acks.ms, acks.tenant_id) == (0, 2, None, tenant.id)
    changed_at = acks.changed_at
    assert mark_applied(worker_id="one", version=policy.version, applied_at=changed_at + timedelta(milliseconds=38))
    assert not mark_applied(worker_id="one", version=policy.version, applied_at=time.time())
    half = selectors.policy_acks(policy.version)
    assert half is not None
    assert (half.applied, half.ms) == (1, None)
    mark_applied(worker_id="two", version=policy.version + 5, applied_at=changed_at.timestamp() + 0.25)
    done = selectors.policy_acks(policy.version)
    assert done is not None
    assert (done.applied, done.of) == (2, 2)
    assert done.ms == pytest.approx(250, abs=1)
    assert {ack.worker_id: round(ack.ms or 0) for ack in done.workers} == {"one": 38, "two": 250}


def test_a_silent_worker_is_not_waited_for(tenant: TenantView, make_worker: Callable[..., WorkerView]) -> None:
    """`applied on 1/1 workers` counts live ones."""
    make_worker("one")
    make_worker("two")
    version = selectors.policy_version()
    mark_applied(worker_id="one", version=version, applied_at=timezone.now())
    grow_silent("two", 31)
    acks = selectors.policy_acks(version)
    assert acks is not None
    assert (acks.applied, acks.of) == (1, 1)


def test_acks_of_unknown_workers_and_versions(tenant: TenantView) -> None:
    """An ack of a forgotten worker is dropped, and a version that never was has no acks."""
    assert not mark_applied(worker_id="ghost", version=1, applied_at=1.0)
    assert selectors.policy_acks(10**12) is None
    assert selectors.policy_acks(2**70) is None


def test_the_applied_version_never_goes_back(make_worker: Callable[..., WorkerView]) -> None:
    """A late ack of an old version is kept, and the worker stays at its newest."""
    make_worker("one")
    for version in (5, 3, 4):
        mark_applied(worker_id="one", version=version, applied_at=1_900_000_000.0 + version)
    row = Worker.objects.get()
    assert row.applied_version == 5
    assert row.applied_at is not None
    assert row.applied_at.timestamp() == 1_900_000_005.0


def test_long_silent_workers_are_forgotten_with_their_acks(make_worker: Callable[..., WorkerView]) -> None:
    """Only those beyond the age go, and that is audited."""
    make_worker("old")
    make_worker("new")
    mark_applied(worker_id="old", version=1, applied_at=1.0)
    grow_silent("old", 3700)
    grow_silent("new", 3500)
    assert forget_stale(connected={"old"}) == []
    assert forget_stale() == ["old"]
    assert forget_stale() == []
    assert [row.pk for row in Worker.objects.all()] == ["new"]
    assert not PolicyAck.objects.exists()
    assert AuditEvent.objects.across_tenants().filter(action="worker.forgotten").count() == 1


@pytest.mark.django_db(transaction=True)
def test_draining_is_told_when_it_changes(actor: Actor) -> None:
    """Listeners hear of a change, and of nothing that changes nothing; no such worker is an error."""
    announce(announcement=CARD)
    with psycopg.connect(conninfo(connection.settings_dict), autocommit=True) as listener:
        listener.execute(f"LISTEN {WORKERS_CHANNEL}")
        states = [
            set_draining(worker_id="worker-0", draining=draining, actor=actor).draining
            for draining in (False, True, True, False)
        ]
        announce(announcement=msgspec.structs.replace(CARD, worker_id="last"))
        heard = [note.payload for note in listener.notifies(timeout=60, stop_after=3)]
    assert states == [False, True, True, False]
    assert heard == ["worker-0", "worker-0", "last"]
    with pytest.raises(NotFound):
        set_draining(worker_id="nobody", draining=True, actor=actor)
