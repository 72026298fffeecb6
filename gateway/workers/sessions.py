"""A tenant's sessions on all workers: list, find, pin, bring up. Blocking: for threads. To erase one, see `erasures`.

Each worker knows its own. A session that has moved, since its worker was away or overloaded, is on several: the copy
that was used last speaks for it, and `copies` names them all.
"""

import base64
import binascii
import json
import math
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import grpc
import msgspec

from engine.protocol import pb
from gateway.workers import calls
from tenants.contracts import WORKER_LIVE_SECONDS, WorkerView

MOST_LISTED = 100  # sessions of one page
READ_SECONDS = 3.0  # how long a worker may take
CHANGE_SECONDS = 5.0

Tier = Literal["device", "host", "disk"]
Action = Literal["pin", "unpin", "prefetch"]
_ACTIONS: dict[Action, pb.SessionAction] = {
    "pin": pb.SESSION_ACTION_PIN,
    "unpin": pb.SESSION_ACTION_UNPIN,
    "prefetch": pb.SESSION_ACTION_PREFETCH,
}


class SessionCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A session as one worker has it. Times are unix seconds."""

    model: str
    worker_id: str
    num_tokens: int  # whose KV is kept
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    num_turns: int
    created_at: float
    last_used_at: float
    expires_at: float  # 0: it is pinned
    pinned: bool
    active: bool  # a request of it is being served

    @property
    def tier(self) -> Tier | None:
        """Where most of it is, the fastest of equals; None: nothing of it is left but its name."""
        sizes: dict[Tier, int] = {"device": self.device_bytes, "host": self.host_bytes, "disk": self.disk_bytes}
        fullest: Tier = max(sizes, key=lambda tier: sizes[tier])
        return fullest if sizes[fullest] else None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a tenant: its copies, the one that was used last first."""

    id: str
    copies: tuple[SessionCopy, ...]

    @property
    def newest(self) -> SessionCopy:
        """The copy that speaks for the session."""
        return self.copies[0]


class MissingWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker whose sessions are not among those told, and why."""

    worker_id: str
    reason: str


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sessions, the last used first. `place`: where the next page begins; None: there is none."""

    sessions: tuple[SessionView, ...]
    place: "Place | None"
    num_sessions: int  # of the tenant, in all, on the workers that answered
    missing: tuple[MissingWorker, ...]


class Place(NamedTuple):
    """Behind a session of a list: what was used last at this moment, or at the same one and sorts before its id."""

    last_used_at: float
    session: str


class SessionUnknown(Exception):
    """No worker that answered has the session; `missing` did not answer, and may have it."""

    def __init__(self, missing: tuple[MissingWorker, ...]) -> None:
        super().__init__("there is no such session")
        self.missing = missing


class BadCursor(ValueError):
    """A cursor that no list gave out."""


class BadLimit(ValueError):
    """A number of sessions that no page may have; the message says which may."""


def list_sessions(
    tenant_id: str, workers: Sequence[WorkerView], *, limit: int, after: Place | None = None
) -> SessionList:
    """Return a page of a tenant's sessions on `workers`, at most `limit`, behind `after`."""
    live, missing = reachable(workers)
    before = math.nextafter(after.last_used_at, math.inf) if after is not None else 0.0
    query = pb.SessionQuery(
        tenant=tenant_id, limit=limit + 2, before=before
    )  # one may be `after` itself, one is to come
    told = calls.ask([(worker, query) for worker in live], "ListSessions", seconds=READ_SECONDS)
    pages = [(one.worker, one.answer) for one in told if one.answer is not None]
    found = _merged((worker, session) for worker, page in pages for session in page.sessions)
    behind = [view for view in found if after is None or _key(view) > (-after.last_used_at, after.session)]
    shown = behind[:limit]
    return SessionList(
        sessions=tuple(shown),
        place=Place(shown[-1].newest.last_used_at, shown[-1].id) if len(behind) > limit else None,
        num_sessions=sum(page.num_sessions for _, page in pages),
        missing=missing + _silent(told),
    )


def find_session(
    tenant_id: str, session: str, workers: Sequence[WorkerView]
) -> tuple[SessionView, Sequence[MissingWorker]]:
    """Return a session, and the workers that did not answer.

    Raises:
        SessionUnknown: nobody who answered has it.
    """
    live, missing = reachable(workers)
    query = pb.SessionQuery(tenant=tenant_id, session=session, limit=1)
    told = calls.ask([(worker, query) for worker in live], "ListSessions", seconds=READ_SECONDS)
    copies = [(one.worker, copy) for one in told if one.answer is not None for copy in one.answer.sessions]
    missing += _silent(told)
    if not copies:
        raise SessionUnknown(missing)
    return _merged(copies)[0], missing


def change_session(
    tenant_id: str, session: str, workers: Sequence[WorkerView], action: Action
) -> tuple[SessionView, Sequence[MissingWorker]]:
    """Pin, unpin or bring up a session wherever it is; return it as it then is, and the workers that did not answer.

    Raises:
        SessionUnknown: nobody who answered has it.
    """
    live, missing = reachable(workers)
    change = pb.SessionChange(tenant=tenant_id, session=session, action=_ACTIONS[action])
    told = calls.ask([(worker, change) for worker in live], "ChangeSession", seconds=CHANGE_SECONDS)
    copies = [(one.worker, one.answer) for one in told if one.answer is not None]
    missing += _silent(one for one in told if one.status is not grpc.StatusCode.NOT_FOUND)
    if not copies:
        raise SessionUnknown(missing)
    return _merged(copies)[0], missing


def reachable(workers: Iterable[WorkerView]) -> tuple[list[WorkerView], tuple[MissingWorker, ...]]:
    """Return the workers that can be asked, and those that have not been heard of for too long to try."""
    since = time.time() - WORKER_LIVE_SECONDS
    live, away = [], []
    for worker in workers:
        if worker.last_seen_at > since:
            live.append(worker)
        else:
            away.append(away_since(worker.worker_id, worker.last_seen_at))
    return live, tuple(away)


def away_since(worker_id: str, last_seen_at: float) -> MissingWorker:
    """Return a worker that was last heard of at `last_seen_at`, unix seconds, as one that is missing."""
    seen = datetime.fromtimestamp(last_seen_at, UTC)
    return MissingWorker(worker_id=worker_id, reason=f"it is away since {seen:%H:%M:%S} UTC")


def read_limit(limit: str) -> int:
    """Return how many sessions a page may have.

    Raises:
        BadLimit: it is no such number.
    """
    if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= MOST_LISTED):
        raise BadLimit(f"a whole number from 1 to {MOST_LISTED}")
    return int(limit)


def write_cursor(place: Place) -> str:
    """Return a place in a list as clients carry it."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> Place:
    """Return the place that a cursor holds.

    Raises:
        BadCursor: no list gave it out.
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        moment, session = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if not isinstance(moment, float) or not isinstance(session, str) or not 0 < moment < 1e12:
            raise BadCursor("another order")
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        raise BadCursor("it is no cursor that this list gave out") from error
    return Place(moment, session)


def _merged(copies: Iterable[tuple[WorkerView, pb.Session]]) -> list[SessionView]:
    """Put the copies of each session together; the sessions that were used last come first."""
    by_id: dict[str, list[SessionCopy]] = {}
    for worker, session in copies:
        by_id.setdefault(session.session, []).append(_copy(worker, session))
    views = [
        SessionView(id=name, copies=tuple(sorted(found, key=lambda copy: (-copy.last_used_at, copy.worker_id))))
        for name, found in by_id.items()
    ]
    return sorted(views, key=_key)


def _key(view: SessionView) -> tuple[float, str]:
    return -view.newest.last_used_at, view.id


def _copy(worker: WorkerView, session: pb.Session) -> SessionCopy:
    return SessionCopy(
        model=worker.model,
        worker_id=worker.worker_id,
        num_tokens=session.num_tokens,
        device_bytes=session.device_bytes,
        host_bytes=session.host_bytes,
        disk_bytes=session.disk_bytes,
        num_turns=session.num_turns,
        created_at=session.created_at,
        last_used_at=session.last_used_at,
        expires_at=session.expires_at,
        pinned=session.pinned,
        active=session.active,
    )


def _silent(told: "Iterable[calls.Told[object]]") -> tuple[MissingWorker, ...]:
    return tuple(
        MissingWorker(worker_id=one.worker.worker_id, reason=one.problem) for one in told if one.answer is None
    )
