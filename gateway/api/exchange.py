"""One HTTP request and its response, over plain ASGI."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import structlog
from starlette.types import Message, Receive, Scope, Send

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
WRITE_SECONDS = 60.0  # for a client that doesn't read; then it counts as gone

_log = structlog.get_logger("gateway.api")


class Exchange:
    """Reads the request, writes the response, and knows when the client leaves."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.web: Web = scope["state"]["web"]
        self.request_id: str = scope["state"]["request_id"]
        self.headers: Headers = []  # added to the response whatever it is
        self.noted: dict[str, object] = {}  # for the log line: ids and counts, never texts
        self.status = 0  # sent; 0: not yet
        self.left = False
        self._receive = receive
        self._send = send
        self._runs: list[Live] = []

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
        """Read the whole body.

        Raises:
            BodyTooLarge: it is over MAX_BODY; the connection is closed, because the rest is not read.
            BodyTooSlow: it took over BODY_SECONDS.
            ClientLeft: the client left before its end.
            UnsupportedEncoding: it is compressed.
        """
        encoding = self._header(b"content-encoding", b"identity")
        if encoding.strip().lower() != b"identity":
            self.headers.append((b"connection", b"close"))
            name = encoding[:40].decode("latin-1")
            raise UnsupportedEncoding(f"The body comes with Content-Encoding {name}: send it uncompressed")
        declared = self._header(b"content-length", b"0")
        if declared.isdigit() and int(declared) > MAX_BODY:
            raise self._too_large()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._read_body()
        except TimeoutError as error:
            self.headers.append((b"connection", b"close"))
            raise BodyTooSlow(f"The body didn't come within {BODY_SECONDS:.0f} s") from error

    async def _read_body(self) -> bytearray:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            body += message.get("body", b"")
            if len(body) > MAX_BODY:
                raise self._too_large()
            if not message.get("more_body", False):
                return body

    def ends(self, runs: Iterable[Live]) -> None:
        """End these when the client leaves, at once if it has."""
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
        body = msgspec.json.encode(data)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.start(status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def error(self, error: ApiError) -> None:
        """Send an error as the response."""
        self.headers += error.headers
        await self.json(error.body(), error.status)

    def _end_runs(self) -> None:
        for run in self._runs:
            run.fail(ClientLeft())

    def _header(self, wanted: bytes, default: bytes) -> bytes:
        return next((value for name, value in self.scope["headers"] if name == wanted), default)

    def _too_large(self) -> BodyTooLarge:
        self.headers.append((b"connection", b"close"))
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
