"""`/v1/sessions`: what of a tenant's conversations is kept, and where. The same for every key of the tenant.

GET    /v1/sessions                    the last used first; `limit`, `after`
GET    /v1/sessions/{id}
DELETE /v1/sessions/{id}               200: gone from every tier; 202: a worker that is away has yet to erase it
POST   /v1/sessions/{id}/{pin,unpin,prefetch}

An id is percent-encoded; a slash in it may stay as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs

from gateway.api.chat import authenticate
from gateway.api.errors import BadRequest, NotFound, Overloaded, RateLimited
from gateway.api.exchange import Exchange, Handler
from gateway.api.sampling import check_session
from gateway.reads import StoreAway
from gateway.workers import erasures, sessions
from gateway.workers.session_desk import DeskBusy
from gateway.workers.sessions import Action, MissingWorker, SessionCopy, SessionUnknown, SessionView
from tenants import selectors
from tenants.contracts import Actor, KeyGrant, WorkerView
from tenants.errors import Conflict

DEFAULT_LIMIT = 20

Result = TypeVar("Result")


async def list_sessions(exchange: Exchange) -> None:
    """List the tenant's sessions."""
    grant = await authenticate(exchange, scope="generate")
    limit, after = _page(exchange)

    def listed() -> sessions.SessionList:
        return sessions.list_sessions(grant.tenant_id, _workers(grant), limit=limit, after=after)

    found = await _at_desk(exchange, grant, listed)
    data = [session_object(view) for view in found.sessions]
    await exchange.json(
        {
            "object": "list",
            "data": data,
            "has_more": found.place is not None,
            "next_after": sessions.write_cursor(found.place) if found.place is not None else None,
            "num_sessions": found.num_sessions,
            "missing_workers": missing_objects(found.missing),
        }
    )


async def retrieve_session(exchange: Exchange) -> None:
    """Show one session."""
    grant = await authenticate(exchange, scope="generate")
    session = _session(exchange)
    view, missing = await _at_desk(
        exchange, grant, lambda: sessions.find_session(grant.tenant_id, session, _workers(grant))
    )
    await exchange.json(session_object(view) | {"missing_workers": missing_objects(missing)})


async def delete_session(exchange: Exchange) -> None:
    """Erase one session from every tier."""
    grant = await authenticate(exchange, scope="generate")
    session = _session(exchange)
    actor = Actor("key", grant.key_id, f"API key {grant.key_id}")

    def erase() -> erasures.Erased:
        return erasures.erase_session(tenant_id=grant.tenant_id, session=session, models=grant.models, actor=actor)

    try:
        erased = await _at_desk(exchange, grant, erase)
    except Conflict as error:
        raise Overloaded(f"{error.message[:1].upper()}{error.message[1:]}.", wait_seconds=60.0) from error
    if not erased.was_there and not erased.waiting:
        raise _unknown(session)
    await exchange.json(erased_object(session, erased), 202 if erased.waiting else 200)


def changing(action: Action) -> Handler:
    """Return the handler that pins, unpins or brings up one session."""

    async def change(exchange: Exchange) -> None:
        grant = await authenticate(exchange, scope="generate")
        session = _session(exchange)
        view, missing = await _at_desk(
            exchange, grant, lambda: sessions.change_session(grant.tenant_id, session, _workers(grant), action)
        )
        await exchange.json(session_object(view) | {"missing_workers": missing_objects(missing)})

    return change


def session_object(view: SessionView) -> dict[str, Any]:
    """Return a session as the API shows it."""
    return {"id": view.id, "object": "session", **_copy_object(view.newest)} | {
        "copies": [_copy_object(copy) for copy in view.copies]
    }


def missing_objects(missing: Sequence[MissingWorker]) -> list[dict[str, str]]:
    """Return the workers whose sessions are not told."""
    return [{"worker": one.worker_id, "reason": one.reason} for one in missing]


def erased_object(session: str, erased: erasures.Erased) -> dict[str, Any]:
    """Return what has become of an erased session."""
    return {
        "id": session,
        "object": "session.deleted",
        "deleted": not erased.waiting,
        "waiting_for": missing_objects(erased.waiting),
    }


def _copy_object(copy: SessionCopy) -> dict[str, Any]:
    return {
        "model": copy.model,
        "worker": copy.worker_id,
        "num_tokens": copy.num_tokens,
        "num_turns": copy.num_turns,
        "tier": copy.tier,
        "device_bytes": copy.device_bytes,
        "host_bytes": copy.host_bytes,
        "disk_bytes": copy.disk_bytes,
        "created_at": copy.created_at,
        "last_used_at": copy.last_used_at,
        "expires_at": copy.expires_at or None,
        "pinned": copy.pinned,
        "active": copy.active,
    }


async def _at_desk(exchange: Exchange, grant: KeyGrant, call: Callable[[], Result]) -> Result:
    try:
        return await exchange.web.sessions.run(grant.tenant_id, call)
    except DeskBusy as error:
        raise RateLimited("Your other calls about sessions are still being answered.", wait_seconds=0.5) from error
    except StoreAway as error:
        raise Overloaded("Sessions can't be asked for just now. Try again in a moment.") from error
    except SessionUnknown as error:
        raise _unknown(exchange.scope["path_params"]["session"], error.missing) from error


def _unknown(session: str, missing: Sequence[MissingWorker] = ()) -> NotFound | Overloaded:
    if missing:
        names = ", ".join(one.worker_id for one in missing)
        return Overloaded(f"No worker that answers has the session `{session}`, and {names} can't be asked.")
    return NotFound(
        f"There is no session `{session}`: it was never used, its time is over, or it was erased.",
        param="session_id",
        code="session_not_found",
    )


def _workers(grant: KeyGrant) -> list[WorkerView]:
    """Return the workers whose models the key may use."""
    return [worker for worker in selectors.known_workers() if not grant.models or worker.model in grant.models]


def _session(exchange: Exchange) -> str:
    session: str = exchange.scope["path_params"]["session"]
    check_session(session, field="session_id")
    return session


def _page(exchange: Exchange) -> tuple[int, sessions.Place | None]:
    query = parse_qs(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    for name in query:
        if name not in ("limit", "after"):
            raise BadRequest(f"Unknown parameter `{name[:200]}`: there are `limit` and `after`", param=name)
    after = query.get("after", [None])[-1]
    try:
        limit = sessions.read_limit(query.get("limit", [str(DEFAULT_LIMIT)])[-1])
        return limit, None if after is None else sessions.read_cursor(after)
    except sessions.BadLimit as error:
        raise BadRequest(f"`limit` must be {error}", param="limit") from error
    except sessions.BadCursor as error:
        raise BadRequest("`after` must be the `next_after` of a page of this list", param="after") from error
