"""One Generate stream: its requests, and a bounded buffer of what goes out."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc

from engine.protocol import pb

if TYPE_CHECKING:
    from engine.front.live_request import LiveRequest

OUTBOX_BYTES = 8 << 20  # what a connection may leave unread here, beyond the transport's own buffers


class Connection:
    """Events posted within one pass of the event loop, such as those of one engine step, leave as one message."""

    def __init__(self, outbox_bytes: int) -> None:
        self.requests: dict[int, LiveRequest] = {}  # by the client's stream number, until their end was posted
        self.failed: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()
        self._limit = outbox_bytes
        self._events: list[pb.Event] = []
        self._outbox: deque[tuple[pb.StepEvents, int]] = deque()
        self._outbox_bytes = 0
        self._wake = asyncio.Event()
        self._no_more_commands = False

    def post(self, event: pb.Event) -> None:
        """Queue an event for the next message."""
        if not self._events:
            asyncio.get_running_loop().call_soon(self.flush)
        self._events.append(event)

    def flush(self) -> None:
        """Make one message of the queued events; a client that leaves too much unread fails the connection."""
        if not self._events or self.failed.done():
            return
        message = pb.StepEvents(events=self._events)
        self._events = []
        size = message.ByteSize()
        self._outbox.append((message, size))
        self._outbox_bytes += size
        if self._outbox_bytes > self._limit:
            self._outbox.clear()
            self.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the client left more than {self._limit} bytes unread")
        self._wake.set()

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End the stream with a status; the first call decides it."""
        if not self.failed.done():
            self.failed.set_result((code, details))

    def no_more_commands(self) -> None:
        """Note that the client has closed its side: the stream ends after the last event."""
        self._no_more_commands = True
        self._wake.set()

    def release(self, stream: int) -> None:
        """Forget a request whose end was posted."""
        self.requests.pop(stream, None)
        self._wake.set()

    async def pump(self, write: Callable[[pb.StepEvents], Awaitable[None]]) -> None:
        """Write messages as fast as the client reads them; return when the client is done and everything is out."""
        while True:
            while self._outbox:
                message, size = self._outbox.popleft()
                await write(message)
                self._outbox_bytes -= size
            if self._no_more_commands and not self.requests and not self._events:
                return
            self._wake.clear()
            await self._wake.wait()
