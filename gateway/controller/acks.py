"""Acks of policy versions into Postgres, and "applied on n/m workers in X ms" to the dashboards.

The answer itself is `tenants.selectors.policy_acks`, which the API and the pages read as well; the hint says that it
changed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import structlog
from django.db import Error

from gateway.controller.threads import DatabaseThreads
from tenants import selectors
from tenants.contracts import PolicyAcks
from tenants.services.workers import mark_applied, mark_settled

MAX_WAITING = 4096  # acks, while Postgres is away
MAX_WRITTEN = 32  # acks in a row before dashboards hear of them
MAX_FOLLOWED = 256  # versions whose progress is told until all workers have applied them
MAX_SETTLING = 32  # of these, after that, the newest until they have settled
RETRY_SECONDS = 0.5

log = structlog.get_logger("acks")


@dataclass(frozen=True, slots=True)
class Ack:
    """A worker has applied a version. `at`: unix seconds by the worker's clock."""

    worker_id: str
    version: int
    at: float
    over_bytes: int = 0  # device KV above the new limits then
    settle_seconds: float = 0.0  # until nothing is, by the worker's guess


@dataclass(frozen=True, slots=True)
class Settled:
    """Nobody is above the limits of a version on a worker any more. `at`: unix seconds by the worker's clock."""

    worker_id: str
    version: int
    at: float


class AckRecorder:
    """Writes acks in the order in which they came and tells how far recent versions have come.

    Args:
        threads: where the database is written.
        tell: gets the progress of each recent version after an ack of it.
    """

    def __init__(self, threads: DatabaseThreads, tell: Callable[[PolicyAcks], None]) -> None:
        self._threads = threads
        self._tell = tell
        self._waiting: deque[Ack | Settled] = deque(maxlen=MAX_WAITING)
        self._followed: dict[int, None] = {}  # an ordered set of versions
        self._settling: dict[int, None] = {}  # the same, of those that are applied everywhere
        self._wake = asyncio.Event()

    def follow(self, versions: Iterable[int]) -> None:
        """Tell of these versions until every live worker has applied them, and of the newest until they have settled.

        A worker that never says that it has settled costs nothing but its part of that line.
        """
        self._followed.update(dict.fromkeys(sorted(versions)[-MAX_FOLLOWED:]))
        while len(self._followed) > MAX_FOLLOWED:
            del self._followed[next(iter(self._followed))]

    def take(self, ack: Ack | Settled) -> None:
        """Take what a worker says; never blocks."""
        self._waiting.append(ack)
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled; while Postgres is away, try again."""
        is_away = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    await self._tell_of(await self._write())
                except Error as error:
                    if not is_away:
                        log.warning("acks_wait", reason=str(error).strip())
                    is_away = True
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                is_away = False

    async def _write(self) -> Collection[int]:
        """Write what waits, at most MAX_WRITTEN; return the versions of which there is news."""
        news: set[int] = set()
        for _ in range(min(len(self._waiting), MAX_WRITTEN)):
            ack = self._waiting[0]
            if isinstance(ack, Settled):
                await self._threads.call(mark_settled, worker_id=ack.worker_id, version=ack.version, settled_at=ack.at)
                news |= {version for version in self._settling if version <= ack.version}
            else:
                await self._threads.call(
                    mark_applied,
                    worker_id=ack.worker_id,
                    version=ack.version,
                    applied_at=ack.at,
                    over_bytes=ack.over_bytes,
                    settle_seconds=ack.settle_seconds,
                )
                news |= {version for version in self._followed if version <= ack.version}
            if self._waiting and self._waiting[0] is ack:
                self._waiting.popleft()
        return sorted(news)

    async def _tell_of(self, versions: Collection[int]) -> None:
        for version in versions:
            progress = await self._threads.call(selectors.policy_acks, version)
            is_applied = progress is None or progress.applied >= progress.of
            if is_applied:
                self._followed.pop(version, None)
                self._settling.pop(version, None)
            if progress is None:
                continue
            if is_applied and progress.settled < progress.of:
                self._settling[version] = None
                while len(self._settling) > MAX_SETTLING:
                    del self._settling[next(iter(self._settling))]
            log.info(
                "policy_applied",
                version=version,
                applied=progress.applied,
                of=progress.of,
                ms=progress.ms,
                settled=progress.settled,
            )
            self._tell(progress)
