"""The process's one LISTEN connection: NOTIFY when it can, polling as the fallback."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

import psycopg
import structlog
from psycopg import sql

FIRST_BACKOFF = 0.2
LAST_BACKOFF = 5.0

_log = structlog.get_logger("gateway.listener")


class Listener:
    """Calls a handler for each notification.

    Args:
        conninfo: psycopg's connection string.
        handlers: by channel; each gets the payload.
        poll: called after each (re)connection, when notifications may have been missed, and every `poll_seconds`,
            connected or not.
    """

    def __init__(
        self,
        conninfo: str,
        handlers: Mapping[str, Callable[[str], Awaitable[None]]],
        poll: Callable[[bool], Awaitable[None]],
        poll_seconds: float = 5.0,
    ) -> None:
        self._conninfo = conninfo
        self._handlers = handlers
        self._poll = poll
        self._poll_seconds = poll_seconds
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen."""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._poll_for_ever())]

    async def stop(self) -> None:
        """Close the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll_for_ever(self) -> None:
        while True:
            await self._poll(False)
            await asyncio.sleep(self._poll_seconds)

    async def _listen(self) -> None:
        backoff = FIRST_BACKOFF
        while True:
            with contextlib.suppress(TimeoutError):
                try:
                    async with asyncio.timeout(10):
                        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
                    async with connection:
                        backoff = FIRST_BACKOFF
                        await self._serve(connection)
                except psycopg.Error as error:
                    _log.warning("listen_broken", reason=str(error).strip())
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LAST_BACKOFF)

    async def _serve(self, connection: psycopg.AsyncConnection) -> None:
        for channel in self._handlers:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        await self._poll(True)
        async for notification in connection.notifies():
            await self._handlers[notification.channel](notification.payload)
