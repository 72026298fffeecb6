"""The registry of sessions: chains of keys, what is left behind, time and room."""

import hashlib
import random

import pytest

from engine.memory.eviction.base import BlockKey
from engine.memory.sessions import DEFAULT_SECONDS, MAX_SECONDS, MAX_STRAYS, Session, Sessions
from engine.request import TenantId

A, B = TenantId("a"), TenantId("b")


def chain(*tokens: int) -> list[BlockKey]:
    """Return a chain of keys as blocks have them: equal where all tokens up to there are."""
    keys, key = [], b""
    for token in tokens:
        key = hashlib.sha256(key + token.to_bytes(4, "little")).digest()
        keys.append(BlockKey(key))
    return keys


def turn(
    sessions: Sessions,
    name: str,
    keys: list[BlockKey],
    *,
    tenant: TenantId = A,
    head: int = 0,
    seconds: float = 0.0,
    now: float = 0.0,
) -> Session:
    """Take one turn of a session in."""
    session = sessions.ensure(tenant, name, now)
    sessions.take_turn(session, keys, head, seconds=seconds, now=now)
    sessions.audit()
    return session


def never(session: Session) -> bool:
    """No session is active."""
    return False


def names(sessions: Sessions, tenant: TenantId = A, before: float = 0.0) -> list[str]:
    """The names of a tenant's sessions, the last used first."""
    return [session.name for session in sessions.newest(tenant, before)]


def test_the_next_turn_extends_the_chain() -> None:
    """What a turn has left is kept, whole."""
    sessions = Sessions(100)
    turn(sessions, "chat", chain(1, 2))
    session = turn(sessions, "chat", chain(1, 2, 3, 4))
    assert session.keys == chain(1, 2, 3, 4)
    assert not session.strays
    assert all(map(sessions.keeps, session.keys))


def test_a_turn_that_kept_less_takes_nothing_away() -> None:
    """Two turns at once: one that was cut short leaves the longer one's chain."""
    sessions = Sessions(100)
    turn(sessions, "chat", chain(1, 2, 3))
    session = turn(sessions, "chat", chain(1, 2))
    assert session.keys == chain(1, 2, 3)
    assert turn(sessions, "chat", []).keys == chain(1, 2, 3)


def test_another_branch_leaves_strays_that_an_erasure_finds() -> None:
    """What the last turn does not continue is still the session's to erase; back on that branch, it is its chain."""
    sessions = Sessions(100)
    turn(sessions, "chat", chain(1, 2, 3))
    session = turn(sessions, "chat", chain(1, 7))
    assert (session.keys, list(session.strays)) == (chain(1, 7), chain(1, 2, 3)[1:])
    turn(sessions, "chat", chain(1, 2, 3, 4))
    assert (session.keys, list(session.strays)) == (chain(1, 2, 3, 4), chain(1, 7)[1:])
    assert set(sessions.remove(session)) == {*chain(1, 2, 3, 4), *chain(1, 7)}
    sessions.audit()
    assert sessions.num_keys == 0


def test_strays_are_bounded_and_the_oldest_are_handed_back() -> None:
    """A session that branches for ever remembers so many keys, and says which it forgets."""
    sessions = Sessions(10_000)
    session = sessions.ensure(A, "chat", 0.0)
    lost: list[BlockKey] = []
    for branch in range(MAX_STRAYS + 20):
        lost += sessions.take_turn(session, chain(1, 1000 + branch), 0, seconds=0, now=0.0)
    sessions.audit()
    assert lost == [chain(1, 1000 + branch)[1] for branch in range(19)]
    assert len(session.strays) == MAX_STRAYS
    assert not any(map(sessions.keeps, lost))


def test_what_another_session_has_is_not_ones_own() -> None:
    """A prefix of two sessions stays with the second when the first is removed."""
    sessions = Sessions(100)
    first, second = turn(sessions, "one", chain(1, 2, 3)), turn(sessions, "two", chain(1, 2, 9))
    assert sessions.remove(first) == chain(1, 2, 3)[2:]
    assert all(map(sessions.keeps, second.keys))
    assert sessions.remove(second) == chain(1, 2, 9)


def test_a_share_groups_blocks_are_never_ones_own() -> None:
    """The leading blocks that belong to a group are not erased with a session, nor left behind as strays."""
    sessions = Sessions(100)
    turn(sessions, "chat", chain(1, 2, 3), head=2)
    session = turn(sessions, "chat", chain(5, 6, 7), head=1)
    assert list(session.strays) == chain(1, 2, 3)[2:]
    assert not any(map(sessions.keeps, chain(1, 2)))
    assert set(sessions.remove(session)) == {chain(1, 2, 3)[2], *chain(5, 6, 7)[1:]}


def test_time_runs_from_the_last_use() -> None:
    """A session ends so long after its last turn; the longest that may be asked for is bounded."""
    sessions = Sessions(100)
    turn(sessions, "default", chain(1), now=0.0)
    short = turn(sessions, "short", chain(2), seconds=5.0, now=0.0)
    long = turn(sessions, "long", chain(3), seconds=1e12, now=0.0)
    assert long.expires_at == MAX_SECONDS
    turn(sessions, "short", chain(2), seconds=5.0, now=4.0)
    assert not sessions.take_expired(8.9, 10, never)
    assert sessions.take_expired(9.0, 10, never) == [short]
    sessions.remove(short)
    assert [one.name for one in sessions.take_expired(DEFAULT_SECONDS, 10, never)] == ["default"]


def test_a_shorter_time_counts_at_once() -> None:
    """What the last turn asked for is in force, whatever was asked for before."""
    sessions = Sessions(100)
    turn(sessions, "chat", chain(1), seconds=1000.0, now=0.0)
    session = turn(sessions, "chat", chain(1), seconds=1.0, now=0.0)
    assert sessions.take_expired(1.0, 10, never) == [session]


def test_a_pinned_session_has_no_end() -> None:
    """Until it is unpinned: then its time runs anew. One that is active has none either."""
    sessions = Sessions(100)
    session = turn(sessions, "chat", chain(1), seconds=1.0, now=0.0)
    sessions.pin(session)
    assert not sessions.take_expired(100.0, 10, never)
    sessions.unpin(session, 100.0)
    sessions.audit()
    assert not sessions.take_expired(101.5, 10, lambda one: one is session)
    assert sessions.take_expired(102.6, 10, never) == [session]


def test_ends_are_taken_bit_by_bit() -> None:
    """So many at a time, and the others the next time."""
    sessions = Sessions(1000)
    for number in range(10):
        turn(sessions, f"chat-{number}", chain(number), seconds=1.0)
    ended = []
    for _ in range(4):
        for session in sessions.take_expired(50.0, 3, never):
            ended.append(session.name)
            sessions.remove(session)
        sessions.audit()
    assert sorted(ended) == [f"chat-{number}" for number in range(10)]


def test_timers_of_sessions_that_are_gone_do_not_pile_up() -> None:
    """Whoever begins and erases sessions without end leaves nothing behind."""
    sessions = Sessions(1000)
    kept = turn(sessions, "kept", chain(1), seconds=10.0)
    for number in range(1000):
        sessions.remove(turn(sessions, "chat", chain(2), seconds=MAX_SECONDS - number))
    assert len(sessions._timers) < 100  # what else is there to look at: it is memory
    assert sessions.take_expired(10.0, 10, never) == [kept]


def test_a_tenant_with_too_many_gives_up_its_least_recently_used() -> None:
    """Not a pinned one, while there is another; other tenants' are left alone."""
    sessions = Sessions(1000, max_sessions=3)
    turn(sessions, "other", chain(50), tenant=B)
    for number in range(3):
        turn(sessions, f"chat-{number}", chain(number))
    sessions.pin(turn(sessions, "chat-0", chain(0)))
    sessions.touch(turn(sessions, "chat-1", chain(1)), 0.0)
    extra = sessions.ensure(A, "extra", 0.0)
    sessions.take_turn(extra, chain(9), 0, seconds=0, now=0.0)
    excess = sessions.find_excess(A)
    assert excess is not None
    assert excess.name == "chat-2"
    sessions.remove(excess)
    assert sessions.find_excess(A) is None
    assert names(sessions) == ["extra", "chat-1", "chat-0"]
    for session in (extra, turn(sessions, "chat-1", chain(1))):
        sessions.pin(session)
    turn_ = sessions.ensure(A, "more", 0.0)
    sessions.pin(turn_)
    excess = sessions.find_excess(A)
    assert excess is not None
    assert excess.name == "chat-0"


def test_keys_are_bounded_and_who_has_most_gives_up() -> None:
    """A tenant with long sessions cannot make the registry forget another's short ones."""
    sessions = Sessions(50)
    turn(sessions, "short", chain(1, 2), tenant=B)
    turn(sessions, "long", chain(*range(100, 140)))
    turn(sessions, "longer", chain(*range(200, 240)))
    lost = []
    while (excess := sessions.find_excess(B)) is not None:
        lost.append((excess.tenant, excess.name))
        sessions.remove(excess)
    assert lost == [(A, "long")]


def test_the_list_begins_with_the_last_used() -> None:
    """No two uses are at the same moment, so that a page can begin where the last one ended."""
    sessions = Sessions(100)
    for number in range(5):
        turn(sessions, f"chat-{number}", chain(number), now=7.0)
    first = list(sessions.newest(A))[:2]
    assert [session.name for session in first] == ["chat-4", "chat-3"]
    assert names(sessions, before=first[-1].last_used_at) == ["chat-2", "chat-1", "chat-0"]
    assert names(sessions, B) == []
    sessions.forget(A)
    sessions.audit()
    assert names(sessions) == []


def test_an_earlier_processs_sessions_stand_behind_those_of_this_one() -> None:
    """In their own order, with their own times, whatever the clock says."""
    sessions = Sessions(100)
    turn(sessions, "new", chain(9), now=50.0)
    for number, used in ((2, 60.0), (1, 40.0), (0, 40.0)):
        session = Session(A, f"old-{number}", 1.0)
        session.last_used_at, session.expires_at, session.num_turns = used, 100.0, 4
        sessions.restore(session, chain(number, 1), [])
        sessions.audit()
    assert names(sessions) == ["new", "old-2", "old-1", "old-0"]
    assert {one.name for one in sessions.take_expired(100.0, 10, never)} == {"old-0", "old-1", "old-2"}


def test_a_session_that_has_begun_anew_takes_over_what_the_earlier_one_knew() -> None:
    """Its blocks are still found by an erasure, and its turns counted."""
    sessions = Sessions(100)
    known = turn(sessions, "chat", chain(1, 2), now=50.0)
    earlier = Session(A, "chat", 1.0)
    earlier.num_turns = 3
    assert sessions.restore(earlier, chain(1, 8), chain(4)) is known
    sessions.audit()
    assert (known.num_turns, known.created_at, known.keys) == (3, 1.0, chain(1, 2))
    assert set(sessions.remove(known)) == {*chain(1, 2), *chain(1, 8), *chain(4)}


@pytest.mark.parametrize("seed", range(8))
def test_random_stories_keep_the_books(seed: int) -> None:
    """Turns on branching chains, ends, pins and removals: nobody's key is lost, and none is kept for nobody."""
    draw = random.Random(seed)
    sessions = Sessions(60, max_sessions=5)
    now = 0.0
    for _ in range(300):
        now += draw.random() * 3
        tenant, name = draw.choice((A, B)), f"chat-{draw.randrange(8)}"
        session = sessions.get(tenant, name)
        match draw.randrange(6):
            case 0 if session is not None:
                own = sessions.remove(session)
                assert not any(map(sessions.keeps, own))
            case 1 if session is not None:
                if draw.random() < 0.5:
                    sessions.pin(session)
                else:
                    sessions.unpin(session, now)
            case 2:
                for one in sessions.take_expired(now, 2, never):
                    sessions.remove(one)
            case _:
                first = 1 if tenant == A else 2  # keys of two tenants are never the same
                keys = chain(first, *(draw.randrange(2) for _ in range(draw.randrange(6))))
                session = sessions.ensure(tenant, name, now)
                sessions.take_turn(session, keys, draw.randrange(2), seconds=draw.randrange(20), now=now)
                while (excess := sessions.find_excess(tenant)) is not None:
                    sessions.remove(excess)
        sessions.audit()
    for one in (A, B):
        sessions.forget(one)
    sessions.audit()
    assert (sessions.num_keys, sessions.num_sessions) == (0, 0)
