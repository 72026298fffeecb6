"""Records of sessions: what one process writes the next one reads."""

import pytest

from engine.memory.sessions import Sessions
from engine.memory.sessions_record import from_record, to_record
from engine.request import TenantId
from tests.engine.memory.test_sessions import A, chain, turn


def test_a_session_comes_back_as_it_was() -> None:
    """Keys, branches that were left, turns, times and pin."""
    sessions = Sessions(100)
    turn(sessions, "chat", chain(1, 2, 3), head=1, now=5.0)
    session = turn(sessions, "chat", chain(1, 7), head=1, seconds=60.0, now=9.0)
    sessions.pin(session)
    kept = from_record(A, "chat", to_record(session))
    assert (kept.keys, kept.strays) == (session.keys, list(session.strays))
    others = Sessions(100)
    again = others.restore(kept.session, kept.keys, kept.strays)
    others.audit()
    for field in ("name", "tenant", "keys", "num_head", "strays", "num_turns", "created_at", "last_used_at", "pinned"):
        assert getattr(again, field) == getattr(session, field), field
    assert (again.seconds, again.expires_at) == (60.0, session.expires_at)


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"\x99" + bytes(9), to_record(turn(Sessions(9), "chat", chain(1))).replace(b" ", b"")[:-9]],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    """With a ValueError that says why, whatever it is."""
    with pytest.raises(ValueError, match=r"."):
        from_record(TenantId("a"), "chat", data)


def test_keys_of_another_length_are_refused() -> None:
    """Half a key names no block."""
    sessions = Sessions(100)
    session = turn(sessions, "chat", chain(1, 2))
    session.keys[1] = session.keys[1][:31]  # type: ignore[assignment]  # as a damaged record would have it
    with pytest.raises(ValueError, match="63 bytes"):
        from_record(A, "chat", to_record(session))
