"""Statistics of workers into the time series: counters become differences, four readings a second rows of ten seconds.

    Control stream ──▶ take() ──▶ the worker's open bucket ──▶ closed ones, waiting ──▶ record (one transaction each)

Buckets are aligned to the clock. Counters count from a core's start: a new core starts anew, a reconnect goes on. Each
bucket is written with the marks where its worker's counters stood, and a new controller goes on from there. While
Postgres is away a bounded number of buckets waits; what is dropped then, and time in which nobody was heard for long,
shows as a gap.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog
from django.db import Error, InterfaceError, OperationalError

from gateway.controller.tally import Tally
from gateway.controller.threads import DatabaseThreads
from tenants.models.series import FINE_SECONDS
from tenants.reports import SeriesBucket, SeriesCounters, WorkerStats
from tenants.services.series import claim_marks, record

MAX_WAITING = 512  # closed buckets of all workers, while Postgres is away
CLAIM_SECONDS = 3.0
GRACE_SECONDS = 0.5  # after a bucket's end, for readings that are on their way

log = structlog.get_logger("series")


class SeriesRecorder:
    """Takes what links tell and writes what it comes to. Lives as long as the leadership.

    Args:
        threads: where the database is written.
        term: of the leadership; an older one's rows are refused.
        clock: unix seconds.
    """

    def __init__(self, threads: DatabaseThreads, term: int, clock: Callable[[], float] = time.time) -> None:
        self._threads = threads
        self._term = term
        self._clock = clock
        self._marks: dict[str, tuple[float, SeriesCounters]] = {}  # of workers that were not heard yet
        self._tallies: dict[str, Tally] = {}
        self._waiting: deque[SeriesBucket] = deque()
        self._is_away = False

    async def claim(self) -> None:
        """Take over where the last controller left off. Without a database, counters start with what is heard first."""
        try:
            async with asyncio.timeout(CLAIM_SECONDS):  # leading must not wait for a database that does not answer
                self._marks = await self._threads.call(claim_marks, term=self._term)
        except (Error, TimeoutError) as error:
            log.warning("series_marks_unreadable", reason=str(error).strip() or type(error).__name__)

    def connected(self, worker_id: str) -> None:
        """A stream is open: its first statistics are complete."""
        tally = self._tallies.get(worker_id)
        if tally is not None:
            tally.reconnected()

    def take(self, stats: WorkerStats) -> None:
        """Take a worker's statistics; never blocks."""
        now = self._clock()
        tally = self._tallies.get(stats.worker_id)
        if tally is None:
            tally = Tally(stats.worker_id, self._marks.pop(stats.worker_id, None))
            self._tallies[stats.worker_id] = tally
        self._close(tally, now)
        tally.add(stats, now)

    async def run(self) -> None:
        """Close and write buckets until cancelled. An open one is not lost: the mark stays before it."""
        while True:
            now = self._clock()
            await asyncio.sleep(FINE_SECONDS - now % FINE_SECONDS + GRACE_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Close what has ended and write all that waits; with Postgres away, leave it for the next time."""
        now = self._clock()
        for tally in self._tallies.values():
            self._close(tally, now)
        self._tallies = {worker: tally for worker, tally in self._tallies.items() if not tally.is_left(now)}
        while self._waiting:
            bucket = self._waiting[0]
            try:
                is_ours = await self._threads.call(record, bucket, term=self._term)
            except (OperationalError, InterfaceError) as error:
                if not self._is_away:
                    log.warning("series_waits", buckets=len(self._waiting), reason=str(error).strip())
                self._is_away = True
                return
            except Error as error:  # it would be refused again for ever, and all that waits behind it
                log.error("series_bucket_refused", worker=bucket.worker_id, reason=str(error).strip())
                is_ours = True
            if self._is_away:
                log.info("series_written_late", buckets=len(self._waiting))
            self._is_away = False
            if not is_ours:
                log.warning("series_of_another_leader", worker=bucket.worker_id)
            if self._waiting and self._waiting[0] is bucket:
                self._waiting.popleft()

    def _close(self, tally: Tally, now: float) -> None:
        bucket = tally.close(now)
        if bucket is None:
            return
        self._waiting.append(bucket)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
