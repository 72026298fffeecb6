"""Usage records of one worker into Postgres: stored once by request id, acked after the commit.

    Control stream ──▶ take() ──▶ waiting ──▶ record_usage (one transaction) ──▶ UsageAck

What is not acked stays in the worker's journal and is sent again, so this side may forget whatever it holds at any
moment: a kill between commit and ack brings the records once more, and the primary key makes that harmless.
"""

import asyncio
from collections.abc import Callable

import structlog
from django.db import Error

from engine.protocol import engine_pb2 as pb
from gateway.controller.messages import usage_entry
from gateway.controller.threads import DatabaseThreads
from tenants.services.usage import record_usage

MAX_WAITING = 8192  # records; a worker sends 2048 without an ack, more is not taken and comes again later
FIRST_BACKOFF = 0.1
LAST_BACKOFF = 5.0

log = structlog.get_logger("usage")


class UsageIntake:
    """Takes one stream's records. Lives as long as the stream.

    Args:
        worker_id: whose records they are.
        threads: where the database is written.
        ack: called with the journal sequence up to which all is stored.
    """

    def __init__(self, worker_id: str, threads: DatabaseThreads, ack: Callable[[int], None]) -> None:
        self._worker_id = worker_id
        self._threads = threads
        self._ack = ack
        self._waiting: dict[int, pb.UsageRecord] = {}
        self._missed_from = 0  # the lowest sequence that was not taken; 0: none was missed
        self._wake = asyncio.Event()

    def take(self, batch: pb.UsageBatch) -> None:
        """Take a batch; never blocks. A record that is waiting already is not kept twice."""
        if not batch.records:
            return
        first, last = batch.records[0].sequence, batch.records[-1].sequence
        if len(self._waiting) >= MAX_WAITING:
            self._missed_from = min(self._missed_from or first, first)
            return
        if first <= self._missed_from <= last:
            self._missed_from = 0  # it came again
        self._waiting.update((record.sequence, record) for record in batch.records)
        self._wake.set()

    async def run(self) -> None:
        """Store and ack until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            records = dict(self._waiting)
            await self._store(list(records.values()))
            for sequence in records:
                del self._waiting[sequence]
            up_to = max(records, default=0)
            if self._missed_from:
                up_to = min(up_to, self._missed_from - 1)
            if up_to:
                self._ack(up_to)

    async def _store(self, records: list[pb.UsageRecord]) -> None:
        entries = [usage_entry(self._worker_id, record) for record in records]
        backoff = FIRST_BACKOFF
        while True:
            try:
                num_new = await self._threads.call(record_usage, entries)
            except Error as error:
                if backoff == FIRST_BACKOFF:
                    log.warning("usage_waits", worker=self._worker_id, records=len(entries), reason=str(error).strip())
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF)
                continue
            if backoff != FIRST_BACKOFF:
                log.info("usage_stored_late", worker=self._worker_id, records=len(entries))
            log.debug("usage_stored", worker=self._worker_id, records=len(entries), new=num_new)
            return
