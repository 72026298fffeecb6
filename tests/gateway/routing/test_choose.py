"""Which worker is tried next."""

from collections import Counter

import pytest

from gateway.routing.choose import LOAD_SLACK, Candidate, affinity, choose

SESSIONS = [affinity("tenant", f"chat {number}") for number in range(600)]


def workers(*names: str, **loads: int) -> list[Candidate]:
    """Return idle workers, but for those that have something to do."""
    return [Candidate(worker_id=name, num_active=loads.get(name, 0)) for name in names]


def place(candidates: list[Candidate], session: bytes, *tried: str) -> str:
    """Return the id of the chosen worker."""
    chosen = choose(candidates, frozenset(tried), session)
    assert chosen is not None
    return chosen.worker_id


def test_without_a_session_the_least_loaded_goes_first() -> None:
    """Ties go by id, those tried never."""
    candidates = workers("c", "b", "a", c=1, b=1, a=5)
    assert place(candidates, b"") == "b"
    assert place(candidates, b"", "b", "c") == "a"
    assert choose(candidates, frozenset({"a", "b", "c"})) is None
    assert choose([]) is None
    assert choose([], session=SESSIONS[0]) is None


def test_a_session_goes_back_to_its_worker_whoever_asks() -> None:
    """The order in which a process has met the workers and small differences of load change nothing."""
    for session in SESSIONS[:50]:
        home = place(workers("a", "b", "c"), session)
        assert place(workers("c", "a", "b", **{home: LOAD_SLACK - 2}), session) == home


def test_sessions_spread_and_only_those_of_a_lost_worker_move() -> None:
    """Each worker has about its share; when one goes its sessions spread over the others, which keep theirs."""
    before = [place(workers("a", "b", "c"), session) for session in SESSIONS]
    assert all(150 <= count <= 250 for count in Counter(before).values())
    after = [place(workers("a", "b"), session) for session in SESSIONS]
    assert [new for old, new in zip(before, after, strict=True) if old != "c"] == [old for old in before if old != "c"]
    moved = Counter(new for old, new in zip(before, after, strict=True) if old == "c")
    assert set(moved) == {"a", "b"}
    assert min(moved.values()) * 3 > sum(moved.values())


def test_a_worker_that_was_tried_is_followed_by_the_next_in_rank() -> None:
    """It is the same one that would serve, were the first one gone."""
    for session in SESSIONS[:50]:
        first = place(workers("a", "b", "c"), session)
        left = [name for name in "abc" if name != first]
        assert place(workers("a", "b", "c"), session, first) == place(workers(*left), session)


@pytest.mark.parametrize("load", [LOAD_SLACK + 1, 40, 1000])
def test_an_overloaded_worker_is_passed_over(load: int) -> None:
    """A burst of one session's requests goes on elsewhere rather than wait; where all are as busy, home is home."""
    for session in SESSIONS[:50]:
        home = place(workers("a", "b", "c"), session)
        busy = place(workers("a", "b", "c", **{home: 2 * load}), session)
        assert busy != home
        assert place(workers("a", "b", "c", a=load, b=load, c=load), session) == home


def test_tenants_and_sessions_are_framed() -> None:
    """No pair of names can be taken for another; no session is none."""
    assert affinity("ab", "c") != affinity("a", "bc")
    assert affinity("ab", "") == b""
