"""Who is the active controller: a Postgres advisory lock, held on the same connection that LISTENs.

When that connection breaks, lock and notifications are gone together, so a leader can never miss both. The connection
is used every `POLL_SECONDS` and has short TCP timeouts: a leader that is cut off from Postgres notices within seconds.
PgBouncer in transaction mode breaks session locks; give the controller a direct connection.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg
import structlog
from psycopg import sql

from gateway.controller.errors import LeadershipLost
from tenants.contracts import POLICY_CHANNEL, WORKERS_CHANNEL

LOCK_ID = 0x746F6C6C67617465  # "tollgate" in ASCII
POLL_SECONDS = 1.0  # notifications are looked past this often: the fallback when one is lost
STANDBY_SECONDS = 0.3  # how often a standby tries the lock
ANSWER_SECONDS = 3.0  # how long Postgres may take to answer on this connection
_TIMEOUTS: dict[str, Any] = {
    "connect_timeout": 3,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}

log = structlog.get_logger("controller")


class Leadership:
    """The lock, held. Made by `elected`.

    `term` is larger for every later leader: it is a transaction id, which Postgres never gives twice.
    """

    def __init__(self, connection: psycopg.AsyncConnection[tuple[Any, ...]], term: int) -> None:
        self.term = term
        self._connection = connection
        self._confirmed_at = time.monotonic()
        self._answered = asyncio.Event()  # set, and replaced, with each answer

    async def changes(self) -> AsyncIterator[set[str]]:
        """Yield the channels that were notified, an empty set each `POLL_SECONDS` without any.

        Raises:
            LeadershipLost: the connection broke or does not answer.
        """
        try:
            while True:
                channels = set()
                async for notification in self._connection.notifies(timeout=POLL_SECONDS, stop_after=1):
                    channels.add(notification.channel)
                if not channels or time.monotonic() - self._confirmed_at > POLL_SECONDS:
                    asked_at = time.monotonic()
                    await _ask(self._connection, "SELECT 1")
                    self._confirmed_at = asked_at
                    self._answered.set()
                    self._answered = asyncio.Event()
                yield channels
        except (psycopg.Error, TimeoutError) as error:
            raise LeadershipLost(str(error).strip()) from error

    async def confirmed(self) -> None:
        """Return once Postgres has answered a question that was asked after this call: the lock is held now."""
        called_at = time.monotonic()
        while self._confirmed_at < called_at:
            await self._answered.wait()


@asynccontextmanager
async def elected(conninfo: str) -> AsyncIterator[Leadership]:
    """Wait, for as long as it takes, until this process holds the lock; leaving the block releases it.

    A Postgres that is away is waited for as well.
    """
    connection, term = await _acquire(conninfo)
    try:
        yield Leadership(connection, term)
    finally:
        await connection.close()


async def _acquire(conninfo: str) -> tuple[psycopg.AsyncConnection[tuple[Any, ...]], int]:
    """Return a connection that holds the lock and listens, and its term."""
    waiting = ""
    connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
    try:
        while True:
            try:
                if connection is None:
                    connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, **_TIMEOUTS)
                if await _try_lock(connection):
                    return connection, await _begin(connection)
                reason = "another controller is active"
            except (psycopg.Error, TimeoutError) as error:
                reason = f"Postgres is away: {error}"
                if connection is not None:
                    await connection.close()
                    connection = None
            if reason != waiting:
                log.info("controller_stands_by", reason=reason)
                waiting = reason
            await asyncio.sleep(STANDBY_SECONDS)
    except BaseException:
        if connection is not None:
            await connection.close()
        raise


async def _try_lock(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> bool:
    return await _ask(connection, f"SELECT pg_try_advisory_lock({LOCK_ID})") == (True,)


async def _ask(connection: psycopg.AsyncConnection[tuple[Any, ...]], query: LiteralString) -> tuple[Any, ...] | None:
    """Return the first row; raise TimeoutError when Postgres takes longer than `ANSWER_SECONDS`.

    The query runs in a task of its own: psycopg takes up to ten more seconds to give up a query that is cancelled.
    """

    async def fetch() -> tuple[Any, ...] | None:
        return await (await connection.execute(query)).fetchone()

    task = asyncio.create_task(fetch())
    done, _ = await asyncio.wait({task}, timeout=ANSWER_SECONDS)
    if done:
        return task.result()
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    task.cancel()
    raise TimeoutError(f"Postgres did not answer within {ANSWER_SECONDS:g} s")


async def _begin(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> int:
    """Listen, and take a term. Listening comes before the first read of the tables, so that no change falls between."""
    for channel in (POLICY_CHANNEL, WORKERS_CHANNEL):
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    row = await _ask(connection, "SELECT pg_current_xact_id()::text::bigint")
    assert row is not None
    return int(row[0])
