"""A tenant's sessions: which conversations are kept, where each is parked, and what may be done about it.

Here and not in `tenants.console`, because it asks the workers. What refreshes itself never fails for something that is
gone: a session that is no more is a row that says so.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from gateway.console import keeping
from gateway.workers import erasures, sessions
from gateway.workers.sessions import Action, MissingWorker, SessionUnknown, SessionView
from tenants import selectors
from tenants.console.access import Place, tenant_page
from tenants.errors import Conflict, Invalid
from tenants.rules import sessions as rules

PAGE_ROWS = 20
TRACK, TRACK_STEP = 32, 34  # per cent: a tier's track, and from where one begins to where the next does
_DONE: dict[Action, str] = {"pin": "pinned", "unpin": "unpinned", "prefetch": "on its way up"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What of a session is in one tier. A block may be in several: each tier has a track of its own, so far filled."""

    tier: str
    words: str
    size: int  # bytes
    start: float  # of its track, in per cent of all tracks
    length: float  # filled, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One session as the table shows it."""

    view: SessionView
    anchor: str  # of its elements: an id of a session may hold anything
    url: str  # of its row; `&` and what is asked follow
    parts: tuple[Part, ...]  # one a tier

    @property
    def used_at(self) -> datetime:
        """When it was last used."""
        return datetime.fromtimestamp(self.view.newest.last_used_at, UTC)

    @property
    def expires_at(self) -> datetime | None:
        """When its time is over; None: it is pinned."""
        at = self.view.newest.expires_at
        return datetime.fromtimestamp(at, UTC) if at else None

    @property
    def held(self) -> tuple[Part, ...]:
        """The tiers that have something of it."""
        return tuple(part for part in self.parts if part.size)


@require_safe
@tenant_page()
def page(request: HttpRequest, place: Place) -> HttpResponse:
    """List the sessions of the tenant, the last used first."""
    return render(request, "sessions/page.html", keeping.shown(place) | _listed(request, place))


@require_safe
@tenant_page()
def listed(request: HttpRequest, place: Place) -> HttpResponse:
    """Return the list anew."""
    return render(request, "sessions/list.html", _listed(request, place))


@require_safe
@tenant_page()
def one(request: HttpRequest, place: Place) -> HttpResponse:
    """Return one session's row; with `?erase` it asks whether to erase the session."""
    session = _session(request)
    try:
        view, _ = sessions.find_session(place.tenant.id, session, selectors.known_workers())
    except SessionUnknown as error:
        return _gone(request, session, missing=error.missing)
    asks = "erase" in request.GET and place.may_write_keys
    shown = {"place": place, "row": _row(place, view), "asks": asks, "is_kept": "keep" in request.GET}
    return render(request, "sessions/row.html", shown)


@require_POST
@tenant_page("keys.write")
def change(request: HttpRequest, place: Place, action: Action) -> HttpResponse:
    """Pin, unpin or bring up a session, and return its row."""
    session = _session(request)
    try:
        view, _ = sessions.change_session(place.tenant.id, session, selectors.known_workers(), action)
    except SessionUnknown as error:
        return _gone(request, session, missing=error.missing)
    shown = {"place": place, "row": _row(place, view), "asks": False, "done": _DONE[action]}
    return render(request, "sessions/row.html", shown)


@require_POST
@tenant_page("keys.write")
def erase(request: HttpRequest, place: Place) -> HttpResponse:
    """Erase a session, and say what has become of it."""
    session = _session(request)
    try:
        erased = erasures.erase_session(tenant_id=place.tenant.id, session=session, actor=place.actor)
    except Conflict as error:
        return _gone(request, session, problem=error.message)
    return _gone(request, session, erased=erased)


def _listed(request: HttpRequest, place: Place) -> dict[str, Any]:
    """Return what a page of the list shows; a cursor that is none is the first page."""
    cursor = request.GET.get("cursor", "")
    try:
        after = sessions.read_cursor(cursor) if cursor else None
    except sessions.BadCursor:
        after, cursor = None, ""
    workers = selectors.known_workers()
    found = sessions.list_sessions(place.tenant.id, workers, limit=PAGE_ROWS, after=after)
    url = reverse("tenant-sessions", args=[place.tenant.slug])
    older = sessions.write_cursor(found.place) if found.place is not None else ""
    return {
        "place": place,
        "rows": [_row(place, view) for view in found.sessions],
        "found": found,
        "has_workers": bool(workers),
        "url": url,
        "list_url": f"{url}list/" + (f"?cursor={cursor}" if cursor else ""),
        "older_url": f"{url}?cursor={older}" if older else "",
        "is_first": not cursor,
    }


def _row(place: Place, view: SessionView) -> Row:
    url = reverse("tenant-session", args=[place.tenant.slug])
    return Row(
        view=view,
        anchor=_anchor(view.id),
        url=f"{url}?{urlencode({'id': view.id}, quote_via=quote)}",
        parts=_parts(view),
    )


def _parts(view: SessionView) -> tuple[Part, ...]:
    copy = view.newest
    sizes = (
        ("device", "device", copy.device_bytes),
        ("host", "host", copy.host_bytes),
        ("disk", "disk", copy.disk_bytes),
    )
    most = max(1, *(size for _, _, size in sizes))
    return tuple(
        Part(tier=tier, words=words, size=size, start=at * TRACK_STEP, length=round(size / most * TRACK, 2))
        for at, (tier, words, size) in enumerate(sizes)
    )


def _gone(
    request: HttpRequest,
    session: str,
    *,
    missing: tuple[MissingWorker, ...] = (),
    erased: erasures.Erased | None = None,
    problem: str = "",
) -> HttpResponse:
    """Return what stands in a session's place: it was erased, or is not there any more, or nobody knows."""
    shown = {
        "session": session,
        "anchor": _anchor(session),
        "missing": missing,
        "erased": erased,
        "problem": problem,
    }
    return render(request, "sessions/gone.html", shown)


def _anchor(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()[:16]


def _session(request: HttpRequest) -> str:
    """Return the id in the query; one that no session can have is an id that no worker knows."""
    session = request.GET.get("id", "")
    try:
        return rules.check("id", session)
    except Invalid:
        return "?"
