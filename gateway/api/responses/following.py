"""Stream a response in the background, from its beginning or from where a client had come, on whatever web process.

Here it is told as it comes; where another process generates it, what that one has stored is read twice a second.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from gateway.api import sse
from gateway.api.errors import ApiError, ClientLeft
from gateway.api.exchange import Exchange
from gateway.api.respond import PING_SECONDS
from gateway.api.responses.background import BackgroundRun
from gateway.api.responses.desk import ResponseDesk
from gateway.api.responses.document import Document, Ending, Step, decoded
from gateway.api.responses.frames import frames
from gateway.api.responses.narrator import Narrator
from tenants.contracts import ResponseOwner, ResponseRecord

READ_SECONDS = 0.5


class Source(Protocol):
    """Where a response comes from."""

    def now(self) -> tuple[Sequence[Step], Ending | None]:
        """Return all steps so far, and the end if it has come."""
        ...

    async def more(self) -> None:
        """Wait for more, no longer than a client may be left without a word."""
        ...


class Here:
    """It is generated in this process."""

    def __init__(self, run: BackgroundRun) -> None:
        self._run = run
        self._num_seen = 0

    def now(self) -> tuple[Sequence[Step], Ending | None]:
        """Return all steps so far, and the end if it has come."""
        self._num_seen = len(self._run.steps)
        return self._run.steps, self._run.ending

    async def more(self) -> None:
        """Wait for more, unless it has come since."""
        if len(self._run.steps) == self._num_seen and self._run.ending is None:
            await self._run.news(PING_SECONDS)


class Stored:
    """It is generated elsewhere, or has ended."""

    def __init__(self, desk: ResponseDesk, owner: ResponseOwner, record: ResponseRecord) -> None:
        self._desk = desk
        self._owner = owner
        self._id = record.id
        self._document = decoded(record)

    def now(self) -> tuple[Sequence[Step], Ending | None]:
        """Return all steps so far, and the end if it has come."""
        return self._document.steps, self._document.ending

    async def more(self) -> None:
        """Wait, and read again. While that can't be, what there is stands."""
        await asyncio.sleep(READ_SECONDS)
        try:
            record = await self._desk.find(self._owner, self._id)
        except ApiError:
            return
        if record is not None:
            self._document = decoded(record)
        else:  # it was deleted meanwhile
            ending = Ending(status="cancelled", at=int(time.time()))
            self._document = Document(head=self._document.head, input=[], steps=self._document.steps, ending=ending)


class Follower:
    """Streams to one client.

    Args:
        exchange: the client's.
        source: of the response.
        head: its object without what comes out.
        after: number of the last event that the client has; -1: none.
        padded: whether deltas hide how long they are.
    """

    def __init__(
        self, exchange: Exchange, source: Source, *, head: dict[str, object], after: int, padded: bool
    ) -> None:
        self._exchange = exchange
        self._source = source
        self._narrator = Narrator(head)
        self._after = after
        self._padded = padded
        self._over = False
        self._waiting: asyncio.Task[None] | None = None  # for more

    def fail(self, error: Exception) -> None:
        """Stop: the client has left, or this process ends. The client may go on where it is, with another process."""
        self._over = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def follow(self) -> None:
        """Stream to the end of the response. Raises ClientLeft."""
        exchange, drain = self._exchange, self._exchange.web.drain
        exchange.ends([self])
        drain.enter(self)
        try:
            await exchange.start(200, sse.HEADERS)
            await self._tell()
        finally:
            drain.leave(self)
        if exchange.left:
            raise ClientLeft
        await exchange.end()

    async def _tell(self) -> None:
        events, num_told, spoke_at = self._narrator.opening(), 0, time.monotonic()
        while not self._over:
            steps, ending = self._source.now()
            for step in steps[num_told:]:
                events += self._narrator.take(step)
            num_told = len(steps)
            if ending is not None:
                events += self._narrator.end(ending)
            data = frames((event for event in events if event["sequence_number"] > self._after), self._padded)
            if not data and time.monotonic() - spoke_at >= PING_SECONDS:
                data = sse.PING
            if data:
                await self._exchange.write(data)
                spoke_at = time.monotonic()
            if ending is not None:
                return
            events = []
            await self._more()

    async def _more(self) -> None:
        """Wait for more, or until it is over with this client."""
        if self._over:
            return
        self._waiting = asyncio.create_task(self._source.more())
        try:
            await asyncio.wait([self._waiting])
            if not self._waiting.cancelled():
                self._waiting.result()
        finally:
            self._waiting.cancel()
            self._waiting = None
