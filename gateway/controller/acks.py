"""Acks of policy versions into Postgres, and "applied on n/m workers in X ms" to the dashboards.

The answer itself is `tenants.selectors.policy_acks`, which the API and the pages read as well; the hint says that it
changed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog
from django.db import Error

from gateway.controller.threads import DatabaseThreads
from tenants import selectors
from tenants.contracts import PolicyAcks
from tenants.services.workers import mark_applied

MAX_WAITING = 4096  # acks, while Postgres is away
MAX_FOLLOWED = 256  # versions whose progress is told
RETRY_SECONDS = 0.5

log = structlog.get_logger("acks")


@dataclass(frozen=True, slots=True)
class Ack:
    """A worker has applied a version. `at`: unix seconds by the worker's clock."""

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
        self._waiting: deque[Ack] = deque(maxlen=MAX_WAITING)
        self._followed: dict[int, None] = {}  # an ordered set of versions
        self._wake = asyncio.Event()

    def follow(self, versions: Iterable[int]) -> None:
        """Tell of these versions until every live worker has applied them."""
        self._followed.update(dict.fromkeys(sorted(versions)[-MAX_FOLLOWED:]))
        while len(self._followed) > MAX_FOLLOWED:
            del self._followed[next(iter(self._followed))]

    def take(self, ack: Ack) -> None:
        """Take an ack; never blocks."""
        self._waiting.append(ack)
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled; while Postgres is away, try again."""
        is_away = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                ack = self._waiting[0]
                try:
                    await self._write(ack)
                except Error as error:
                    if not is_away:
                        log.warning("ack_waits", worker=ack.worker_id, version=ack.version, reason=str(error).strip())
                    is_away = True
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                is_away = False
                if self._waiting and self._waiting[0] is ack:
                    self._waiting.popleft()

    async def _write(self, ack: Ack) -> None:
        await self._threads.call(mark_applied, worker_id=ack.worker_id, version=ack.version, applied_at=ack.at)
        for version in [version for version in self._followed if version <= ack.version]:
            progress = await self._threads.call(selectors.policy_acks, version)
            if progress is None or progress.applied >= progress.of:
                self._followed.pop(version, None)
            if progress is not None:
                log.info("policy_applied", version=version, applied=progress.applied, of=progress.of, ms=progress.ms)
                self._tell(progress)
