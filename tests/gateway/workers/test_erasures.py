"""Erasing sessions for certain, whichever worker is away."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from django.utils import timezone

from gateway import tasks
from gateway.workers import erasures
from gateway.workers.erasures import Erased, deliver, erase_kv, erase_session
from tenants import rows, selectors
from tenants.contracts import AbsentWorkerView, Actor, TenantView
from tenants.errors import Conflict
from tenants.models import AbsentWorker, AuditEvent, LateErasure, SessionErasure, Tenant
from tenants.services import absent
from tenants.services import sessions as service
from tenants.services.tenants import create_tenant
from tenants.services.workers import forget_stale
from tests.gateway.wire.keeping import Keeper, come, go, keeping

ACTOR = Actor("system", "tests", "tests")
NOON = 1_700_000_000.0


@pytest.fixture
def tenant(db: None) -> TenantView:
    """Return a tenant."""
    return create_tenant(slug="acme", name="Acme", actor=ACTOR)


def erase(tenant: TenantView, session: str = "chat") -> Erased:
    """Erase a session on all workers that are known."""
    return erase_session(tenant_id=tenant.id, session=session, actor=ACTOR)


def pending(tenant: TenantView) -> list[tuple[str, str]]:
    """Return what waits, as (session, worker)."""
    return list(SessionErasure.objects.for_tenant(tenant.id).order_by("pk").values_list("session", "worker_id"))


def audited(tenant: TenantView, action: str = "session.erased") -> list[object]:
    """Return what the audit trail says of erasures."""
    events = AuditEvent.objects.for_tenant(tenant.id).filter(action=action).order_by("pk")
    return [event.after for event in events]


def test_an_erasure_that_all_confirm_leaves_nothing_to_do(tenant: TenantView, tmp_path: Path) -> None:
    """Each worker is asked; one that has no such session has nothing to erase."""
    one, two, old = Keeper("one"), Keeper("two"), Keeper("old", refusal=grpc.StatusCode.UNIMPLEMENTED)
    one.keep(tenant.id, "chat", used=NOON)
    one.keep(tenant.id, "other", used=NOON)
    with keeping(tmp_path, one, two, old):
        assert erase(tenant) == Erased(was_there=True, waiting=())
    assert one.names() == ["other"]
    assert [session for session, _ in two.changes] == ["chat"]
    assert pending(tenant) == []
    assert audited(tenant) == [{"session": "chat", "waiting_for": []}]


def test_an_unknown_session_leaves_no_trace(tenant: TenantView, tmp_path: Path) -> None:
    """Nobody had it: there is no row and no audit event that a stranger to the truth could pile up."""
    with keeping(tmp_path, Keeper("one")):
        assert erase(tenant) == Erased(was_there=False, waiting=())
    assert pending(tenant) == []
    assert audited(tenant) == []


def test_a_worker_that_is_away_erases_when_it_is_back(tenant: TenantView, tmp_path: Path) -> None:
    """It is written down, survives that the worker is forgotten, and asking twice is asking once."""
    one, two = Keeper("one"), Keeper("two")
    for worker in (one, two):
        worker.keep(tenant.id, "chat", used=NOON)
    with keeping(tmp_path, one):
        come("two")
        go("two")
        for was_there in (True, False):
            erased = erase(tenant)
            assert erased.was_there is was_there
            assert [worker.worker_id for worker in erased.waiting] == ["two"]
        assert pending(tenant) == [("chat", "two")]
        assert deliver(older_than_seconds=0) == 0
    with keeping(tmp_path, two):
        assert tasks.deliver_erasures() == 0  # whoever asked for it may still be waiting
        SessionErasure.objects.across_tenants().update(requested_at=timezone.now() - timedelta(minutes=5))
        assert tasks.deliver_erasures() == 1
    assert two.names() == []
    assert pending(tenant) == []
    assert audited(tenant)[-1] == {"session": "chat", "waiting_for": [], "worker_id": "two"}


@pytest.mark.parametrize("refusal", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
def test_a_worker_that_fails_is_asked_again(tenant: TenantView, tmp_path: Path, refusal: grpc.StatusCode) -> None:
    """Whatever it says other than that it is done; others are not kept waiting by it."""
    ill, well = Keeper("ill"), Keeper("well")
    for worker in (ill, well):
        worker.keep(tenant.id, "chat", used=NOON)
    ill.refusal = refusal
    with keeping(tmp_path, ill, well):
        assert [worker.worker_id for worker in erase(tenant).waiting] == ["ill"]
        assert well.names() == []
        assert deliver(older_than_seconds=0) == 0
        ill.refusal = None
        assert deliver(older_than_seconds=0) == 1
    assert ill.names() == []


def test_a_crash_before_the_workers_are_asked_loses_nothing(tenant: TenantView, tmp_path: Path) -> None:
    """What was begun is delivered, and the audit trail hears of it then."""
    one = Keeper("one")
    one.keep(tenant.id, "chat", used=NOON)
    with keeping(tmp_path, one):
        service.begin_erasure(tenant_id=tenant.id, session="chat", workers=["one"], actor=ACTOR)
        assert deliver(older_than_seconds=0) == 1
        assert deliver(older_than_seconds=0) == 0
    assert one.names() == []
    assert audited(tenant) == [{"session": "chat", "waiting_for": [], "worker_id": "one"}]


def test_what_waits_is_bounded(tenant: TenantView, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant cannot fill the table while a worker is away."""
    monkeypatch.setattr(service, "MOST_PENDING", 3)
    come("gone")
    go("gone")
    for number in range(3):
        erase(tenant, f"chat {number}")
    with pytest.raises(Conflict, match="wait for workers"):
        erase(tenant, "one more")
    assert len(pending(tenant)) == 3


def test_all_kv_of_a_tenant_is_erased(tenant: TenantView, tmp_path: Path) -> None:
    """A new namespace finds nothing from before, every session goes, and another tenant's stay."""
    other = create_tenant(slug="other", name="Other", actor=ACTOR)
    one, two = Keeper("one"), Keeper("two")
    for number in range(120):
        one.keep(tenant.id, f"chat {number}", used=NOON + number)
    two.keep(tenant.id, "chat", used=NOON)
    one.keep(other.id, "chat", used=NOON)
    before = rows.namespace(Tenant.objects.get(pk=tenant.id).secret)
    version = selectors.policy_version()
    with keeping(tmp_path, one):
        come("two")
        go("two")
        policy, erased = erase_kv(tenant_id=tenant.id, actor=ACTOR)
        assert policy.version == version + 1
        assert [worker.worker_id for worker in erased.waiting] == ["two"]
        assert list(one.sessions) == [(other.id, "chat")]
        assert pending(tenant) == [("", "two")]
    with keeping(tmp_path, two):
        assert deliver(older_than_seconds=0) == 1
    assert two.names() == []
    assert rows.namespace(Tenant.objects.get(pk=tenant.id).secret) != before
    assert len(audited(tenant, "kv.erased")) == 1


def test_a_worker_that_lists_nothing_since_its_disk_is_not_read_has_not_erased_all(
    tenant: TenantView, tmp_path: Path
) -> None:
    """What it will find there later is erased then, before it is confirmed."""
    one = Keeper("one", is_unread=True)
    with keeping(tmp_path, one):
        _, erased = erase_kv(tenant_id=tenant.id, actor=ACTOR)
        assert [worker.worker_id for worker in erased.waiting] == ["one"]
        assert deliver(older_than_seconds=0) == 0
        assert pending(tenant) == [("", "one")]
        one.is_unread = False
        one.keep(tenant.id, "chat", used=NOON)
        assert deliver(older_than_seconds=0) == 1
    assert one.names() == []
    assert pending(tenant) == []


def forget(worker_id: str) -> None:
    """Let a worker have been away for so long that it is forgotten, as the controller does it."""
    go(worker_id)
    assert forget_stale(older_than_seconds=120) == [worker_id]


def test_a_forgotten_worker_erases_what_it_missed_when_it_is_back(tenant: TenantView, tmp_path: Path) -> None:
    """Its disk still has the session: who erased it is told so, and it goes at the next delivery, without a wait."""
    one = Keeper("one")
    for session in ("chat", "other"):
        one.keep(tenant.id, session, used=NOON)
    come("one")
    forget("one")
    erased = erase(tenant)
    assert [worker.worker_id for worker in erased.waiting] == ["one"]
    assert erased.waiting[0].reason.startswith("it is away since ")
    LateErasure.objects.across_tenants().update(asked_at=timezone.now() - timedelta(minutes=2))
    with keeping(tmp_path, one):
        assert pending(tenant) == [("chat", "one")]
        assert tasks.deliver_erasures() == 1
        assert one.names() == ["other"]
        assert erase(tenant) == Erased(was_there=False, waiting=())
    assert audited(tenant)[-1] == {"session": "chat", "waiting_for": [], "worker_id": "one"}


def test_a_forgotten_worker_erases_all_of_a_tenant_when_it_is_back(tenant: TenantView, tmp_path: Path) -> None:
    """Another tenant's sessions stay there."""
    other = create_tenant(slug="other", name="Other", actor=ACTOR)
    one = Keeper("one")
    for owner in (tenant, other):
        one.keep(owner.id, "chat", used=NOON)
    come("one")
    forget("one")
    _, erased = erase_kv(tenant_id=tenant.id, actor=ACTOR)
    assert [worker.worker_id for worker in erased.waiting] == ["one"]
    with keeping(tmp_path, one):
        assert deliver(older_than_seconds=0) == 1
    assert list(one.sessions) == [(other.id, "chat")]


def test_a_worker_that_is_gone_for_good_is_not_waited_for(tenant: TenantView, tmp_path: Path) -> None:
    """After an hour an erasure is over without it, and reaches it all the same should it come back."""
    one, two = Keeper("one"), Keeper("two")
    for worker in (one, two):
        worker.keep(tenant.id, "chat", used=NOON)
    come("two")
    forget("two")
    AbsentWorker.objects.update(last_seen_at=timezone.now() - timedelta(hours=2))
    with keeping(tmp_path, one):
        assert erase(tenant) == Erased(was_there=True, waiting=())
    with keeping(tmp_path, two):
        assert deliver(older_than_seconds=0) == 1
    assert two.names() == []


def test_a_worker_that_is_forgotten_or_back_while_an_erasure_begins_is_not_missed(
    tenant: TenantView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever list it is in when that one is read."""
    come("leaves")
    come("returns")
    forget("returns")
    remember = absent.remember

    def amid(**asked: Any) -> list[AbsentWorkerView]:
        gone = remember(**asked)
        forget("leaves")
        come("returns")
        return gone

    monkeypatch.setattr(absent, "remember", amid)
    erased = erase(tenant)
    assert sorted(worker.worker_id for worker in erased.waiting) == ["leaves", "returns"]
    assert sorted(pending(tenant)) == [("chat", "leaves"), ("chat", "returns")]


def test_a_key_of_some_models_erases_on_absent_workers_of_those(tenant: TenantView) -> None:
    """A worker of another model keeps its session of that name."""
    for model in ("tiny", "large"):
        come(model, model=model)
        forget(model)
    erased = erase_session(tenant_id=tenant.id, session="chat", models=("tiny",), actor=ACTOR)
    assert [worker.worker_id for worker in erased.waiting] == ["tiny"]
    for model in ("tiny", "large"):
        come(model, model=model)
    assert pending(tenant) == [("chat", "tiny")]


def test_a_worker_that_does_not_erase_keeps_no_other_waiting(
    tenant: TenantView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait for it, and before the others'."""
    monkeypatch.setattr(erasures, "BATCH", 2)
    ill, well = Keeper("ill", is_unread=True), Keeper("well")
    with keeping(tmp_path, ill, well):
        for number in range(5):
            service.begin_erasure(tenant_id=tenant.id, session=f"chat {number}", workers=["ill"], actor=ACTOR)
        for number in range(5):
            well.keep(tenant.id, f"chat {number}", used=NOON)
            service.begin_erasure(tenant_id=tenant.id, session=f"chat {number}", workers=["well"], actor=ACTOR)
        assert deliver(older_than_seconds=0) == 5
    assert well.names() == []
    assert len(ill.changes) == 1
    assert {worker for _, worker in pending(tenant)} == {"ill"}
