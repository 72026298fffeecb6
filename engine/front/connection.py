"""One Generate stream: its requests, and a bounded buffer of what goes out."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import structlog

from engine.front.outbox import Outbox
from engine.protocol import pb

if TYPE_CHECKING:
    from engine.front.live_request import LiveRequest

OUTBOX_BYTES = 8 << 20  # what a connection may leave unread here, beyond a message and the transport's own buffers
_WHOLE_BYTES = 256 << 20  # the same of results that leave whole, beside the one that is leaving
_CUT = (
    "its output was not read as fast as it came, and of all requests it had most waiting: ask for fewer "
    "log-probabilities or outputs at once, or try again"
)

log = structlog.get_logger(part="connections")


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """What a request leaves at its end alone: its events, made as they go, and about how many bytes they take."""

    stream: int
    events: Iterator[pb.Event]
    num_bytes: int


class Connection:
    """Events posted within one pass of the event loop, such as those of one engine step, leave as one message.

    A connection is that of a gateway process, with requests of many tenants on it: where more waits than may, the
    requests that have most of it waiting end, and the others go on.

    Args:
        outbox_bytes: what may wait, beside the message that is leaving.
        cut: ends requests with an error that says why; those that are over already get that end.
    """

    def __init__(self, outbox_bytes: int, cut: "Callable[[Sequence[LiveRequest], str], None]") -> None:
        self.requests: dict[int, LiveRequest] = {}  # by the client's stream number, until their end was posted
        self.failed: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()
        self._limit = outbox_bytes
        self._cut = cut
        self._events: list[pb.Event] = []
        self._outbox = Outbox()
        self._wholes: deque[Whole] = deque()
        self._whole_bytes = 0  # of those behind the first
        self._wake = asyncio.Event()
        self._no_more_commands = False

    def post(self, event: pb.Event) -> None:
        """Queue an event for the next message."""
        if not self._events:
            asyncio.get_running_loop().call_soon(self.flush)
        self._events.append(event)

    def post_whole(self, whole: Whole) -> None:
        """Queue the result of a request; it is released after the last event.

        Each event leaves as a message of its own when nothing else waits, so that a result of many megabytes neither
        holds up the steps of other requests nor counts as unread.
        """
        if self._wholes:
            self._whole_bytes += whole.num_bytes
        self._wholes.append(whole)
        if self._whole_bytes > _WHOLE_BYTES:
            self._wholes.clear()
            self.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the client left more than {_WHOLE_BYTES} bytes unread")
        self._wake.set()

    def flush(self) -> None:
        """Make one message of the queued events; requests that have too much waiting then end."""
        if not self._events or self.failed.done():
            return
        self._outbox.add(pb.StepEvents(events=self._events))
        self._events = []
        if self._outbox.num_bytes > self._limit:
            self._relieve()
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
            while (message := self._outbox.take()) is not None:
                await write(message)
            event = self._next_of_wholes()
            if event is not None:
                await write(pb.StepEvents(events=[event]))
                continue
            if self._no_more_commands and not self.requests and not self._events:
                return
            self._wake.clear()
            await self._wake.wait()

    def _relieve(self) -> None:
        """End the requests that have most waiting: an eighth more than is too much, so that this is not done often.

        Where even that leaves too much, as of a great many ends, the connection fails.
        """
        before = self._outbox.num_bytes
        streams = self._outbox.largest(before - self._limit + self._limit // 8)
        self._outbox.cut(streams, _CUT)
        log.warning("requests_cut", requests=len(streams), bytes_before=before, bytes_after=self._outbox.num_bytes)
        if self._outbox.num_bytes > self._limit:
            self._outbox.clear()
            self.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the client left more than {self._limit} bytes unread")
        else:
            self._cut([self.requests[stream] for stream in streams if stream in self.requests], _CUT)

    def _next_of_wholes(self) -> pb.Event | None:
        while self._wholes:
            event = next(self._wholes[0].events, None)
            if event is not None:
                return event
            self.release(self._wholes.popleft().stream)
            if self._wholes:
                self._whole_bytes -= self._wholes[0].num_bytes
        return None


class Stream:
    """One request's place on a connection: its events carry the number that the client gave it."""

    __slots__ = ("connection", "number")

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number

    def post(self, index: int = 0, **kind: object) -> None:
        """Queue an event of this kind; `index` says of which of several outputs."""
        event = pb.Event(stream=self.number, **kind)  # type: ignore[arg-type]  # one field of the oneof
        if index:
            event.index = index
        self.connection.post(event)

    def release(self) -> None:
        """Forget the request: its end was posted."""
        self.connection.release(self.number)
