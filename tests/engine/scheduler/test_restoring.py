"""Sessions of an earlier process: read and added bit by bit."""

import pytest

from engine.memory.sessions import Sessions
from engine.memory.sessions_record import to_record
from engine.request import TenantId
from engine.scheduler.restoring import Restoring
from tests.engine.memory.test_sessions import A, B, chain, names, turn

Records = dict[str, list[tuple[str, bytes]] | None]


class Disk:
    """Records by tenant; None while a tenant's cannot be read."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def sessions(self, owner: TenantId) -> list[tuple[str, bytes]] | None:
        """Return a tenant's records."""
        return self.records.get(owner, [])


def records(count: int, *, tenant: TenantId = A) -> list[tuple[str, bytes]]:
    """Return the records of so many sessions, used one after the other."""
    sessions = Sessions(10_000)
    for number in range(count):
        turn(sessions, f"chat-{number}", chain(number, 1), tenant=tenant, now=float(number))
    return [(session.name, to_record(session)) for session in sessions]


def run(restoring: Restoring, now: float = 0.0) -> int:
    """Go on until nothing is on its way; return how many steps it took."""
    steps = 0
    while restoring.is_busy:
        restoring.advance(now)
        steps += 1
    return steps


def test_all_come_back_in_their_order_and_in_many_steps() -> None:
    """However the records lie; a tenant at a time, and known as on its way until the last one is there."""
    sessions = Sessions(10_000)
    kept = records(100)
    restoring = Restoring(sessions, Disk({A: kept[50:] + kept[:50], B: records(3, tenant=B)}))
    restoring.begin(A)
    restoring.begin(B)
    assert restoring.has(A)
    assert run(restoring) >= 10
    assert not restoring.has(A)
    sessions.audit()
    assert names(sessions) == [f"chat-{number}" for number in range(99, -1, -1)]
    assert names(sessions, B) == ["chat-2", "chat-1", "chat-0"]


def test_once_in_the_life_of_a_policy() -> None:
    """A policy that comes again brings back nothing that was let go meanwhile; a tenant that is new does."""
    sessions = Sessions(100)
    restoring = Restoring(sessions, Disk({A: records(2)}))
    restoring.begin(A)
    run(restoring)
    sessions.forget(A)
    restoring.begin(A)
    assert not restoring.is_busy
    restoring.forget(A)
    restoring.begin(A)
    assert restoring.has(A)
    restoring.forget(A)
    assert not restoring.is_busy
    assert not names(sessions)


def test_a_disk_that_cannot_be_read_is_asked_again() -> None:
    """Not in every step; once it can be, the sessions are there."""
    sessions, disk = Sessions(100), Disk({A: None})
    restoring = Restoring(sessions, disk)
    restoring.begin(A)
    restoring.advance(10.0)
    disk.records[A] = records(2)
    restoring.advance(10.5)
    assert not restoring.is_busy
    restoring.advance(11.0)
    run(restoring)
    assert names(sessions) == ["chat-1", "chat-0"]


def test_a_record_that_is_none_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """The others come back; the log says whose it was, and not what was in it."""
    sessions = Sessions(100)
    restoring = Restoring(sessions, Disk({A: [*records(2), ("bad", b"secret words")]}))
    restoring.begin(A)
    run(restoring)
    assert names(sessions) == ["chat-1", "chat-0"]
    assert "session_record_ignored" in caplog.text
    assert "secret words" not in caplog.text
