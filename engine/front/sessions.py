"""Calls about sessions: sent to the core by number, answered by its SessionsFrame, and never left hanging.

list, change ─▶ check ─▶ frame ─▶ core ─▶ SessionsFrame ─▶ the caller who waits for that number
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from engine import ipc
from engine.protocol import pb

SESSION_MAX_BYTES = 256
MAX_PAGE = 1000  # sessions of one answer
_DEFAULT_PAGE = 100
_TENANT_MAX_BYTES = 128
_MAX_PENDING, _MAX_TENANT_PENDING = 512, 64  # calls that wait for the core
ANSWER_SECONDS = 10.0
ERASE_SECONDS = 60.0  # bytes are overwritten in every tier, on a disk that may be slow
_ACTIONS = {
    pb.SESSION_ACTION_PIN: "pin",
    pb.SESSION_ACTION_UNPIN: "unpin",
    pb.SESSION_ACTION_PREFETCH: "prefetch",
    pb.SESSION_ACTION_ERASE: "erase",
}


class SessionError(Exception):
    """A call that gets no sessions for an answer, and what to tell the caller."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Pending:
    tenant: str
    answer: "asyncio.Future[ipc.SessionsFrame]"


class SessionCalls:
    """The calls that wait for the core. One that its caller gives up is forgotten; the core does it all the same."""

    def __init__(
        self,
        send: Callable[[ipc.ToCore], None],
        *,
        answer_seconds: float = ANSWER_SECONDS,
        erase_seconds: float = ERASE_SECONDS,
    ) -> None:
        """Take no call before the core is ready.

        Args:
            send: sends to the core.
            answer_seconds: how long a call waits for the core.
            erase_seconds: how long an erasure does.
        """
        self._send = send
        self._answer_seconds, self._erase_seconds = answer_seconds, erase_seconds
        self._pending: dict[int, _Pending] = {}
        self._num_pending: Counter[str] = Counter()  # by tenant
        self._next_number = 1  # never used twice: an answer that comes too late is nobody's
        self._unavailable = "the engine core is starting"

    async def list(self, request: pb.SessionQuery) -> pb.SessionPage:
        """Return a page of a tenant's sessions.

        Raises:
            SessionError: the call is malformed, or the core does not answer it.
        """
        _check_tenant(request.tenant)
        if request.session:
            _check_session(request.session)
        if not (math.isfinite(request.before) and request.before >= 0):
            raise _invalid("before", f"is {request.before}: give unix seconds, or 0 to begin with the newest")
        if request.limit > MAX_PAGE:
            raise _invalid("limit", f"is {request.limit}: ask for at most {MAX_PAGE} sessions at a time")
        number = self._take_number()
        frame = ipc.SessionQueryFrame(
            number=number,
            tenant=request.tenant,
            session=request.session,
            limit=request.limit or _DEFAULT_PAGE,
            before=request.before,
        )
        answer = await self._ask(number, request.tenant, frame, self._answer_seconds)
        return pb.SessionPage(sessions=map(_session, answer.sessions), num_sessions=answer.num_sessions)

    async def change(self, request: pb.SessionChange) -> pb.Session:
        """Change a session and return it, an erased one as it was.

        Raises:
            SessionError: the call is malformed, there is no such session, or the core does not answer it.
        """
        _check_tenant(request.tenant)
        _check_session(request.session)
        action = _ACTIONS.get(request.action)
        if action is None:
            raise _invalid("action", f"is {request.action}: choose pin, unpin, prefetch or erase")
        number = self._take_number()
        frame = ipc.SessionChangeFrame(number=number, tenant=request.tenant, session=request.session, action=action)
        seconds = self._erase_seconds if action == "erase" else self._answer_seconds
        answer = await self._ask(number, request.tenant, frame, seconds)
        if not answer.sessions:
            raise SessionError(grpc.StatusCode.NOT_FOUND, "session: this worker keeps no such session of the tenant")
        return _session(answer.sessions[0])

    def prefetch(self, prefetch: pb.Prefetch) -> None:
        """Tell the core that the next turn of a session is about to come; what names no session is passed over."""
        if not self._unavailable and prefetch.tenant and 0 < len(prefetch.session.encode()) <= SESSION_MAX_BYTES:
            self._send(ipc.PrefetchFrame(tenant=prefetch.tenant, session=prefetch.session))

    # ------------------------------------------------------------ from the core

    def core_ready(self) -> None:
        """Take calls from now on."""
        self._unavailable = ""

    def core_lost(self, detail: str) -> None:
        """End all calls, and take none until the next core is ready."""
        self._unavailable = detail
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(_unavailable(detail))

    def answered(self, frame: ipc.SessionsFrame) -> None:
        """Hand the core's answer to who waits for it, if anybody still does."""
        pending = self._pending.get(frame.number)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(frame)

    # ------------------------------------------------------------ inside

    async def _ask(self, number: int, tenant: str, frame: ipc.ToCore, seconds: float) -> ipc.SessionsFrame:
        if self._unavailable:
            raise _unavailable(self._unavailable)
        if len(self._pending) >= _MAX_PENDING or self._num_pending[tenant] >= _MAX_TENANT_PENDING:
            message = "too many calls about sessions are being answered: try again soon"
            raise SessionError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        answer: asyncio.Future[ipc.SessionsFrame] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(tenant, answer)
        self._num_pending[tenant] += 1
        try:
            self._send(frame)
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            message = f"the engine core has not answered within {seconds:g} s; what was asked for is still being done"
            raise SessionError(grpc.StatusCode.DEADLINE_EXCEEDED, message) from None
        finally:
            del self._pending[number]
            self._num_pending[tenant] -= 1
            if not self._num_pending[tenant]:
                del self._num_pending[tenant]

    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1


def session_problem(session: str) -> str:
    """Return what is wrong with a session's id, empty for nothing."""
    if len(session.encode()) > SESSION_MAX_BYTES:
        return f"is longer than {SESSION_MAX_BYTES} bytes"
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in session):
        return "has control characters: leave them out"
    return ""


def _check_tenant(tenant: str) -> None:
    if not tenant:
        raise _invalid("tenant", "is empty: say whose sessions")
    if len(tenant.encode()) > _TENANT_MAX_BYTES:
        raise _invalid("tenant", f"is longer than {_TENANT_MAX_BYTES} bytes")


def _check_session(session: str) -> None:
    if not session:
        raise _invalid("session", "is empty: say which one")
    problem = session_problem(session)
    if problem:
        raise _invalid("session", problem)


def _invalid(field: str, problem: str) -> SessionError:
    return SessionError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: it {problem}")


def _unavailable(detail: str) -> SessionError:
    return SessionError(grpc.StatusCode.UNAVAILABLE, f"{detail}: try again soon")


def _session(state: ipc.SessionState) -> pb.Session:
    return pb.Session(
        session=state.session,
        num_tokens=state.num_tokens,
        device_bytes=state.device_bytes,
        host_bytes=state.host_bytes,
        disk_bytes=state.disk_bytes,
        num_turns=state.num_turns,
        created_at=state.created_at,
        last_used_at=state.last_used_at,
        expires_at=state.expires_at,
        pinned=state.pinned,
        active=state.active,
    )
