"""One HTTP request and its response, over plain ASGI."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import structlog
from starlette.types import Message, Receive, Scope, Send

from gateway.admission.buffers import STEP_BYTES, Hold
from gateway.api.errors import (
    ApiError,
    BodyTooLarge,
    BodyTooSlow,
    ClientLeft,
    Headers,
    InternalError,
    UnsupportedEncoding,
    from_worker,
)
from gateway.drain import Live
from gateway.web import Web
from gateway.workers.errors import WorkerError

MAX_BODY = 4 << 20  # bytes
BODY_SECONDS = 60.0  # for the whole body to come
SMALL_BODY = 64 << 10  # bytes; of a request that is refused unread the server reads so much by itself
LINGER_SECONDS = 1.0  # that a client has, after an answer to a body that wasn't read, to stop and read it
WRITE_SECONDS = 60.0  # for a client that doesn't read; then it counts as gone

_log = structlog.get_logger("gateway.api")


class Exchange:
    """Reads the request, writes the response, and knows when the client leaves."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.web: Web = scope["state"]["web"]
        self.request_id: str = scope["state"]["request_id"]
        self.headers: Headers = []  # added to the response whatever it is
        self.tenant_id = ""  # the caller's, once it is known: a body is read from nobody else
        self.noted: dict[str, object] = {}  # for the log line: ids and counts, never texts
        self.status = 0  # sent; 0: not yet
        self.left = False
        self._receive = receive
        self._send = send
        self._runs: list[Live] = []
        self._hold: Hold | None = None  # of the body
        self._asked = False  # for the body: a client that waits for 100-continue sends it
        declared = self._declared()
        self._unread = declared is None or declared > SMALL_BODY

    @property
    def client(self) -> str | None:
        """The caller's address."""
        client = self.scope.get("client")
        return client[0] if client else None

    def header(self, name: bytes) -> str | None:
        """Return a header of the request, its name in lower case; None: it has none."""
        value = self._header(name, b"\0")
        return None if value == b"\0" else value.decode("latin-1")

    def tap(self, listener: Callable[[Message], Awaitable[None]]) -> None:
        """Let `listener` have each message of the response before it is sent."""
        send = self._send

        async def tapped(message: Message) -> None:
            await listener(message)
            await send(message)

        self._send = tapped

    async def body(self) -> bytearray:
        """Read the whole body. It counts among its tenant's until the request runs, or the exchange ends.

        Raises:
            BodyTooLarge: it is over MAX_BODY.
            BodyTooSlow: it took over BODY_SECONDS.
            RateLimited, Overloaded: there is no room for it beside other bodies.
            ClientLeft: the client left before its end.
            UnsupportedEncoding: it is compressed.
        """
        assert self.tenant_id, "a body is read from a caller who is known"
        self._unread = True
        encodings = b",".join(value for name, value in self.scope["headers"] if name == b"content-encoding")
        if any(encoding.strip().lower() not in (b"", b"identity") for encoding in encodings.split(b",")):
            name = encodings[:40].decode("latin-1")
            raise UnsupportedEncoding(f"The body comes with Content-Encoding {name}: send it uncompressed")
        declared = self._declared() or 0
        if declared > MAX_BODY:
            raise _too_large()
        self._hold = self.web.buffers.hold(self.tenant_id)
        self._hold.cover(declared)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._read_body(self._hold, declared)
        except TimeoutError as error:
            raise BodyTooSlow(f"The body didn't come within {BODY_SECONDS:.0f} s") from error
        self._unread = False
        return body

    async def _read_body(self, hold: Hold, covered: int) -> bytearray:
        body = bytearray()
        self._asked = True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece, is_last = message.get("body", b""), not message.get("more_body", False)
            size = len(body) + len(piece)
            if size > MAX_BODY:
                raise _too_large()
            if size > covered:
                covered = size if is_last else size + STEP_BYTES
                hold.cover(covered)
            body += piece
            if is_last:
                return body

    def release(self) -> None:
        """Count the body no more: it is gone, or what was made of it is bounded by the tenant's other limits."""
        if self._hold is not None:
            self._hold.close()

    def ends(self, runs: Iterable[Live]) -> None:
        """End these when the client leaves, at once if it has. What runs was admitted: its body counts no more."""
        self.release()
        self._runs += runs
        if self.left:
            self._end_runs()

    async def watch(self) -> None:
        """Wait until the client leaves; to be run beside the handler once the body is read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._end_runs()

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers.

        Raises:
            ClientLeft: nobody is there.
        """
        if self.left:
            raise ClientLeft
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers + self.headers})

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client doesn't read. Raises ClientLeft."""
        if self.left:
            raise ClientLeft
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError as error:
            raise ClientLeft from error

    async def end(self) -> None:
        """Send the end of the body."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def json(self, data: object, status: int = 200) -> None:
        """Send a whole JSON response."""
        await self._json(data, status, more=False)

    async def error(self, error: ApiError) -> None:
        """Send an error as the response; where the body was not read, close the connection after it."""
        self.release()
        self.headers += error.headers
        if not self._unread:
            await self.json(error.body(), error.status)
            return
        self.headers.append((b"connection", b"close"))
        await self._json(error.body(), error.status, more=True)
        await self._drop_rest()
        await self.end()

    async def _json(self, data: object, status: int, *, more: bool) -> None:
        body = msgspec.json.encode(data)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.start(status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _drop_rest(self) -> None:
        """Let the client end its body, which nobody keeps: a connection closed at once is reset under the answer."""
        if not self._asked and self._header(b"expect", b"").lower() == b"100-continue":
            return  # it sends nothing, and would if it were listened to
        left = MAX_BODY
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0:
                    message = await self._receive()
                    if not message.get("more_body", False):
                        return
                    left -= len(message["body"])

    def _end_runs(self) -> None:
        for run in self._runs:
            run.fail(ClientLeft())

    def _header(self, wanted: bytes, default: bytes) -> bytes:
        return next((value for name, value in self.scope["headers"] if name == wanted), default)

    def _declared(self) -> int | None:
        """Return the length of the body in bytes, as its client declares it; None: it comes in chunks."""
        if self._header(b"transfer-encoding", b""):
            return None
        declared = self._header(b"content-length", b"0")
        return int(declared) if declared.isdigit() else 0


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is over {MAX_BODY >> 20} MiB: send less text")


Handler = Callable[[Exchange], Awaitable[None]]


class Endpoint:
    """An ASGI application around a handler: answers its errors, logs one line a request."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = Exchange(scope, receive, send)
        began = time.monotonic()
        try:
            await self._answer(exchange)
        except ClientLeft:
            exchange.noted["client_left"] = True
        finally:
            exchange.release()
            _log.info(
                "request",
                request_id=exchange.request_id,
                method=scope["method"],
                path=scope["path"],
                status=exchange.status,
                ms=round((time.monotonic() - began) * 1000, 1),
                **exchange.noted,
            )

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        except ApiError as error:
            await exchange.error(error)
        except WorkerError as error:
            await exchange.error(from_worker(error))
        except ClientLeft:
            raise
        except Exception:
            _log.exception("request_failed", request_id=exchange.request_id)
            if exchange.status:
                raise  # mid-response: the server cuts the connection, which is all that is left to say
            await exchange.error(InternalError())


class Watching:
    """Watch for the client's leave during a block."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._exchange.watch())

    async def __aexit__(self, *_: Any) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
