"""A bound on what Django reads of a request's body: it takes any body whole before a view or a check runs."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admission.buffers import Buffers, Hold
from gateway.api.errors import ApiError

MAX_BODY = 1 << 20  # bytes; pages and the management API take forms and small JSON
MAX_BODIES = 64 << 20  # bytes of all bodies that one process holds; shared out by the callers' addresses
BODY_SECONDS = 60.0


class BodyLimit:
    """Refuses bodies, whoever sends them.

    413: it is too large; 408: too slow; 429, 503: there is no room for it beside others.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.buffers = Buffers(MAX_BODIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if _declared(scope) > MAX_BODY:
            await _refuse(send, 413, f"The body is over {MAX_BODY >> 20} MiB.")
            return
        hold = self.buffers.hold((scope.get("client") or ("",))[0])
        reading = _Reading(receive, hold, _declared(scope))
        try:
            await self._app(scope, reading.receive, reading.guarded(send))
        finally:
            hold.close()
        if reading.refusal:
            await _refuse(send, *reading.refusal)


class _Reading:
    """One request's body on its way to Django, which sees a client that left where a bound is passed."""

    def __init__(self, receive: Receive, hold: Hold, declared: int) -> None:
        self._receive = receive
        self._hold = hold
        self._declared = declared
        self._size = 0
        self._is_read = False
        self._ends_at = asyncio.get_running_loop().time() + BODY_SECONDS
        self.refusal: tuple[int, str] | None = None

    async def receive(self) -> Message:
        """Pass on the next message."""
        if self.refusal:
            return {"type": "http.disconnect"}
        if self._is_read:
            return await self._receive()  # waits for the client's leave, however long the response takes
        try:
            if self._declared:
                self._hold.cover(self._declared)
            async with asyncio.timeout_at(self._ends_at):
                message = await self._receive()
            self._size += len(message.get("body", b""))
            if self._size:
                self._hold.cover(self._size)
        except TimeoutError:
            return self._refused(408, f"The body didn't come within {BODY_SECONDS:.0f} s.")
        except ApiError as error:
            return self._refused(error.status, error.message)
        self._is_read = not message.get("more_body", False)
        if self._size > MAX_BODY:
            return self._refused(413, f"The body is over {MAX_BODY >> 20} MiB.")
        return message

    def guarded(self, send: Send) -> Send:
        """Return `send` for Django: silent once the request is refused."""

        async def pass_on(message: Message) -> None:
            if not self.refusal:
                await send(message)

        return pass_on

    def _refused(self, status: int, text: str) -> Message:
        self.refusal = (status, text)
        return {"type": "http.disconnect"}


def _declared(scope: Scope) -> int:
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(value) if value.isdigit() else 0


async def _refuse(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the rest of the body is not read
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
