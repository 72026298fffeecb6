"""A web process's end: takes nothing new, lets streams finish, then ends the rest.

    SIGTERM ─▶ stop listening, `draining` ─▶ wait until nothing is live, at most `seconds` ─▶ fail what is left
            ─▶ close websockets with 1012 ─▶ the server's own handler, which ends the process

A second signal skips the wait for streams: they end with an error event at once. A third one skips that too.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import structlog

from gateway.workers.errors import Stopping

LAST_WORDS_SECONDS = 2.0  # for error events to be written
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = structlog.get_logger("gateway.drain")


class Live(Protocol):
    """Something that a stopping process waits for."""

    def fail(self, error: Exception) -> None:
        """End with `error`."""
        ...


class Socket(Protocol):
    """A websocket that outlives its responses."""

    async def drained(self) -> None:
        """Close with 1012: the process has ended what ran."""
        ...


class Drain:
    """What lives in this process, and its end. `seconds`: how long streams may go on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._live: set[Live] = set()
        self._sockets: set[Socket] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self._signals = 0
        self.draining = False

    @property
    def num_live(self) -> int:
        """Generations under way."""
        return len(self._live)

    def enter(self, live: Live) -> None:
        """Wait for this one."""
        self._live.add(live)
        self._empty.clear()

    def leave(self, live: Live) -> None:
        """Wait for it no more."""
        self._live.discard(live)
        if not self._live:
            self._empty.set()

    def open(self, websocket: Socket) -> None:
        """Close this socket at the end."""
        self._sockets.add(websocket)

    def close(self, websocket: Socket) -> None:
        """Forget the socket."""
        self._sockets.discard(websocket)

    async def run(self) -> None:
        """Drain: returns when nothing is live and every websocket has been closed."""
        self.draining = True
        _log.info("draining", live=len(self._live), sockets=len(self._sockets), seconds=self._seconds)
        if not await self._emptied(self._seconds, unless=self._hurried):
            for live in list(self._live):
                live.fail(Stopping("The server is restarting and ended this response"))
            await self._emptied(LAST_WORDS_SECONDS)
        await asyncio.gather(*(websocket.drained() for websocket in list(self._sockets)), return_exceptions=True)

    def on_signals(self) -> None:
        """Drain before the server's own handlers run. Does nothing where the server has none, as in a test client."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            server = getattr(handler, "__self__", None)
            if callable(handler) and hasattr(server, "should_exit"):
                _no_delay(server)
                signal.signal(number, self._handler(loop, handler, server))

    def _handler(
        self, loop: asyncio.AbstractEventLoop, ended: Callable[[int, FrameType | None], Any], server: Any
    ) -> Callable[[int, FrameType | None], None]:
        def begin(number: int) -> None:
            for listener in getattr(server, "servers", ()):
                listener.close()
            self._task = asyncio.create_task(self.run(), name="drain")
            self._task.add_done_callback(lambda _: ended(number, None))

        def handle(number: int, frame: FrameType | None) -> None:
            self._signals += 1
            if self._signals == 1:
                self.draining = True
                loop.call_soon_threadsafe(begin, number)
            elif self._signals == 2:
                loop.call_soon_threadsafe(self._hurried.set)
            else:
                ended(number, frame)

        return handle

    async def _emptied(self, seconds: float, *, unless: asyncio.Event | None = None) -> bool:
        """Say whether nothing is live any more, after `seconds` or when `unless` is set at the latest."""
        waits = [asyncio.create_task(event.wait()) for event in (self._empty, unless) if event is not None]
        _, pending = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        return self._empty.is_set()


def _no_delay(server: Any) -> None:
    """Send each token as it comes, also on an inherited socket.

    uvicorn takes `--fd` for a unix socket, so that no event loop sets TCP_NODELAY on its connections; on Linux they
    inherit it from the listening socket.
    """
    number = getattr(server.config, "fd", None)
    if number is None:
        return
    with socket.socket(fileno=socket.dup(number)) as listener:
        if listener.family in (socket.AF_INET, socket.AF_INET6):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
