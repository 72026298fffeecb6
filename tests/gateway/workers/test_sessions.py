"""A tenant's sessions on several workers, put together."""

from pathlib import Path

import grpc
import pytest

from engine.protocol import pb
from gateway.workers.sessions import (
    BadCursor,
    Place,
    SessionUnknown,
    change_session,
    find_session,
    list_sessions,
    read_cursor,
    write_cursor,
)
from tenants import selectors
from tests.gateway.wire.keeping import Keeper, come, go, keeping

TENANT = "11111111-1111-1111-1111-111111111111"
OTHER = "22222222-2222-2222-2222-222222222222"
NOON = 1_700_000_000.0

pytestmark = pytest.mark.django_db


def all_pages(limit: int) -> list[list[str]]:
    """Follow the list to its end."""
    pages: list[list[str]] = []
    after: Place | None = None
    while True:
        found = list_sessions(TENANT, selectors.known_workers(), limit=limit, after=after)
        pages.append([view.id for view in found.sessions])
        if found.place is None:
            return pages
        after = read_cursor(write_cursor(found.place))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_lists_are_merged_page_by_page(tmp_path: Path, limit: int) -> None:
    """Every session of all workers comes once, the last used first, moments that two workers share included."""
    one, two = Keeper("one"), Keeper("two")
    for number in range(7):
        one.keep(TENANT, f"a{number}", used=NOON + number)
        two.keep(TENANT, f"b{number}", used=NOON + number + (0 if number % 2 else 0.5))
    one.keep(OTHER, "another tenant's", used=NOON)
    with keeping(tmp_path, one, two):
        pages = all_pages(limit)
    used = {f"a{n}": NOON + n for n in range(7)} | {f"b{n}": NOON + n + (0 if n % 2 else 0.5) for n in range(7)}
    assert [name for page in pages for name in page] == sorted(used, key=lambda name: (-used[name], name))
    assert all(len(page) == limit for page in pages[:-1])
    assert all(query.limit <= limit + 2 for query in one.queries)


def test_copies_of_a_session_are_one(tmp_path: Path) -> None:
    """The copy that was used last speaks for it; the others are named."""
    one, two = Keeper("one"), Keeper("two", model="other")
    one.keep(TENANT, "chat", used=NOON, num_turns=1, device_bytes=0, host_bytes=9, disk_bytes=9)
    two.keep(TENANT, "chat", used=NOON + 60, num_turns=5)
    with keeping(tmp_path, one, two):
        workers = selectors.known_workers()
        (listed,) = list_sessions(TENANT, workers, limit=5).sessions
        found, missing = find_session(TENANT, "chat", workers)
    assert listed == found
    assert not missing
    assert [(copy.worker_id, copy.model, copy.num_turns, copy.tier) for copy in found.copies] == [
        ("two", "other", 5, "device"),
        ("one", "tiny", 1, "host"),
    ]


def test_a_session_of_nothing_but_its_name_is_in_no_tier(tmp_path: Path) -> None:
    """All of its blocks have been given up: its next turn is computed again."""
    one = Keeper("one")
    one.keep(TENANT, "chat", used=NOON, device_bytes=0)
    with keeping(tmp_path, one):
        found, _ = find_session(TENANT, "chat", selectors.known_workers())
    assert found.newest.tier is None


def test_workers_that_do_not_answer_are_named(tmp_path: Path) -> None:
    """A list is what is known, and says whose sessions are not in it."""
    one, deaf, old = Keeper("one"), Keeper("deaf"), Keeper("old", refusal=grpc.StatusCode.UNIMPLEMENTED)
    one.keep(TENANT, "chat", used=NOON)
    with keeping(tmp_path, one, deaf, old):
        come("gone")
        go("gone")
        come("mute")  # announced, and nobody serves there
        found = list_sessions(TENANT, selectors.known_workers(), limit=5)
        _, missing = find_session(TENANT, "chat", selectors.known_workers())
    assert [view.id for view in found.sessions] == ["chat"]
    assert {one.worker_id for one in found.missing} == {"gone", "mute", "old"}
    reasons = {one.worker_id: one.reason for one in missing}
    assert "away since" in reasons["gone"]
    assert reasons["mute"] == "it cannot be reached"
    assert "older version" in reasons["old"]


def test_changes_reach_every_copy(tmp_path: Path) -> None:
    """Pinned is pinned wherever it is; a worker that has no such session is not missed."""
    one, two, three = Keeper("one"), Keeper("two"), Keeper("three")
    one.keep(TENANT, "chat", used=NOON)
    two.keep(TENANT, "chat", used=NOON + 1)
    with keeping(tmp_path, one, two, three):
        workers = selectors.known_workers()
        pinned, missing = change_session(TENANT, "chat", workers, "pin")
        assert not missing
        assert [(copy.worker_id, copy.pinned, copy.expires_at) for copy in pinned.copies] == [
            ("two", True, 0),
            ("one", True, 0),
        ]
        change_session(TENANT, "chat", workers, "prefetch")
        unpinned, _ = change_session(TENANT, "chat", workers, "unpin")
        assert not unpinned.newest.pinned
    assert [action for _, action in one.changes] == [
        pb.SESSION_ACTION_PIN,
        pb.SESSION_ACTION_PREFETCH,
        pb.SESSION_ACTION_UNPIN,
    ]


def test_unknown_sessions_are_told_from_unreachable_ones(tmp_path: Path) -> None:
    """Nobody has it; or nobody who answers has it, and somebody does not answer. Another tenant's is unknown."""
    one = Keeper("one")
    one.keep(OTHER, "chat", used=NOON)
    with keeping(tmp_path, one):
        with pytest.raises(SessionUnknown) as unknown:
            find_session(TENANT, "chat", selectors.known_workers())
        assert not unknown.value.missing
        come("gone")
        go("gone")
        with pytest.raises(SessionUnknown) as unsure:
            change_session(TENANT, "chat", selectors.known_workers(), "pin")
    assert [one.worker_id for one in unsure.value.missing] == ["gone"]


@pytest.mark.parametrize(
    "cursor", ["", "x", "é", "bnVsbA", "W10", "WzEsImEiXQ", "WyJhIiwxXQ", "W05hTiwiYSJd", "WzFlOTksImEiXQ", "[[[[[[[["]
)
def test_made_up_cursors_are_refused(cursor: str) -> None:
    """Whatever a client writes instead of a cursor is no place in a list."""
    with pytest.raises(BadCursor):
        read_cursor(cursor)
