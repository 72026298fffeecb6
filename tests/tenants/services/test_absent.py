"""What is remembered for workers that are forgotten, and for how long."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from tenants import selectors
from tenants.contracts import Actor, TenantView, WorkerAnnouncement, WorkerView
from tenants.models import AbsentWorker, LateErasure, SessionErasure, Worker
from tenants.services import absent
from tenants.services.workers import announce, forget_stale

ACTOR = Actor("system", "tests", "tests")


@pytest.fixture
def lose(make_worker: Callable[..., WorkerView]) -> Callable[[str, float], None]:
    """Return what makes a worker that was last seen so many seconds ago, and is forgotten."""

    def forgotten(worker_id: str, seconds: float) -> None:
        make_worker(worker_id)
        Worker.objects.filter(pk=worker_id).update(last_seen_at=timezone.now() - timedelta(seconds=seconds))
        assert forget_stale(older_than_seconds=120) == [worker_id]

    return forgotten


def ask(tenant: TenantView, session: str) -> list[str]:
    """Remember an erasure; return the absent workers."""
    gone = absent.remember(tenant_id=tenant.id, session=session, models=(), actor=ACTOR)
    return [worker.worker_id for worker in gone]


def back(worker_id: str) -> set[str]:
    """Let a worker be back, and return the sessions that it is to erase then."""
    card = WorkerAnnouncement(
        worker_id=worker_id, address="a:1", model="tiny", digest="", kv_bytes=1, block_bytes=1, max_context=1
    )
    announce(announcement=card)
    rows = SessionErasure.objects.across_tenants().filter(worker_id=worker_id)
    return set(rows.values_list("session", flat=True))


def late() -> set[str]:
    """Return the sessions that are remembered."""
    return set(LateErasure.objects.across_tenants().values_list("session", flat=True))


def test_without_absent_workers_nothing_is_remembered(
    tenant: TenantView, make_worker: Callable[..., WorkerView]
) -> None:
    """Who is known is asked by name."""
    make_worker("one")
    assert ask(tenant, "chat") == []
    assert late() == set()


def test_a_worker_that_is_back_is_told_what_it_missed_once(
    tenant: TenantView, lose: Callable[[str, float], None]
) -> None:
    """What was asked for before it went it knows; its heartbeats bring nothing again."""
    lose("first", 400)
    ask(tenant, "early")
    LateErasure.objects.across_tenants().update(asked_at=timezone.now() - timedelta(seconds=350))
    lose("second", 300)
    assert ask(tenant, "late") == ["first", "second"]
    assert back("second") == {"late"}
    assert back("first") == {"early", "late"}
    SessionErasure.objects.across_tenants().all().delete()
    assert back("first") == set()
    assert not AbsentWorker.objects.exists()


def test_a_forgotten_worker_is_shown_nowhere(lose: Callable[[str, float], None]) -> None:
    """It is neither among the known nor a worker's row."""
    lose("one", 300)
    assert selectors.known_workers() == []
    assert not Worker.objects.exists()


def test_a_worker_that_goes_again_before_it_is_told_misses_nothing(
    tenant: TenantView, lose: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash behind its announcement leaves its absence as long as it was."""
    lose("one", 400)
    ask(tenant, "chat")
    LateErasure.objects.across_tenants().update(asked_at=timezone.now() - timedelta(seconds=350))
    with monkeypatch.context() as crash:
        crash.setattr(absent, "take_up", lambda **_: 0)
        lose("one", 200)
    assert back("one") == {"chat"}


def test_many_erasures_become_one_of_all_for_who_missed_the_oldest(
    tenant: TenantView, lose: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are bounded; who has been away for a short time still loses single sessions alone."""
    monkeypatch.setattr(absent, "MOST_LATE", 4)
    lose("long", 9000)
    for number in range(4):
        ask(tenant, f"old {number}")
    LateErasure.objects.across_tenants().update(asked_at=timezone.now() - timedelta(seconds=8000))
    lose("short", 300)
    ask(tenant, "new")
    assert "" in late()
    assert len(late()) <= 4
    assert back("short") == {"new"}
    assert {"", "new"} <= back("long")


def test_an_erasure_of_all_stays_the_newest(
    tenant: TenantView, lose: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single ones that are older than it do not take it back in time."""
    monkeypatch.setattr(absent, "MOST_LATE", 2)
    lose("one", 9000)
    for number in range(2):
        ask(tenant, f"old {number}")
    LateErasure.objects.across_tenants().update(asked_at=timezone.now() - timedelta(seconds=8000))
    ask(tenant, "")
    lose("two", 300)
    LateErasure.objects.across_tenants().filter(session="").update(asked_at=timezone.now())
    ask(tenant, "new")
    assert "" in back("two")


def test_what_nobody_misses_any_more_is_swept(tenant: TenantView, lose: Callable[[str, float], None]) -> None:
    """Erasures go with the last absent worker that missed them, and workers that never come back go in the end."""
    lose("one", 400)
    ask(tenant, "early")
    LateErasure.objects.across_tenants().update(asked_at=timezone.now() - timedelta(seconds=350))
    lose("two", 300)
    ask(tenant, "late")
    assert absent.sweep() == 0
    back("one")
    assert absent.sweep() == 1
    assert late() == {"late"}
    AbsentWorker.objects.update(last_seen_at=timezone.now() - timedelta(days=401))
    assert absent.sweep() == 2
    assert late() == set()


def test_absent_workers_are_bounded(lose: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were seen last are kept."""
    monkeypatch.setattr(absent, "MOST_ABSENT", 2)
    for number in range(4):
        lose(f"worker-{number}", 1000 - number)
    assert absent.sweep() == 2
    assert sorted(AbsentWorker.objects.values_list("pk", flat=True)) == ["worker-2", "worker-3"]
