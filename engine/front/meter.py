"""The meter: what each request used, exact after any crash of a process (DESIGN section 3.4).

A request's counters live in the table from its submission on. At its end they go to the journal with its finish reason,
and only when the journal has them on disk is the record in the table cleared and the end reported. A crash in between
leaves both; the journal's key, the request id, then keeps the second copy out.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import structlog

from engine.front.journal import Journal
from engine.front.table import IDENTITY_MAX_BYTES, Counters, CounterTable, Identity
from engine.protocol import pb
from engine.request import FinishReason

PB_REASON = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}

log = structlog.get_logger(part="meter")


class IdentityTooLongError(ValueError):
    """The ids of a request do not fit a record of the table."""


@dataclass(frozen=True, slots=True)
class Metered:
    """A running request in the table."""

    slot: int
    identity: Identity


class Meter:
    """Owns the counter table; writes ends to the journal."""

    def __init__(self, state_dir: Path, journal: Journal) -> None:
        """Open the table and close what an earlier process left running.

        Raises:
            EngineError: the table cannot be opened.
        """
        self._path = state_dir / "counters"
        self._table = CounterTable(self._path)
        self._journal = journal
        self._on_record: Callable[[], None] = lambda: None
        self._close_orphans()

    @property
    def in_use(self) -> int:
        """Requests whose usage is not in the journal yet."""
        return len(self._table)

    @property
    def failure(self) -> str:
        """Why usage cannot be stored at the moment; empty: it can."""
        return self._journal.failure

    def watch(self, on_record: Callable[[], None]) -> None:
        """Call `on_record` after each commit of usage records."""
        self._on_record = on_record

    def begin(self, identity: Identity, counters: Counters) -> Metered:
        """Take a record for a new request.

        Raises:
            IdentityTooLongError: its ids do not fit.
            OSError: the disk has no room for the table to grow.
        """
        raw = msgspec.msgpack.encode(identity)
        if len(raw) > IDENTITY_MAX_BYTES:
            raise IdentityTooLongError(
                f"the request's ids take {len(raw)} bytes, at most {IDENTITY_MAX_BYTES} are metered"
            )
        return Metered(self._table.begin(raw, counters), identity)

    def update(self, metered: Metered, counters: Counters) -> None:
        """Store the counters; call it before what they count leaves the process."""
        self._table.update(metered.slot, counters)

    def drop(self, metered: Metered) -> None:
        """Forget a request that never ran (it was refused): it leaves no usage."""
        self._table.clear(metered.slot)

    def finish(self, metered: Metered, counters: Counters, then: Callable[[], None]) -> None:
        """Journal the end of a request, whose counters carry the finish reason; `then` runs once it is on disk."""
        self._table.update(metered.slot, counters)
        record = usage_record(metered.identity, counters).SerializeToString()
        stored = self._journal.append(metered.identity.request_id, record)
        stored.add_done_callback(partial(self._stored, metered, then))

    def close(self) -> None:
        """Close the table; requests that still run stay in it for the next start."""
        self._table.close()

    def _stored(self, metered: Metered, then: Callable[[], None], stored: "asyncio.Future[object]") -> None:
        if stored.cancelled():
            return
        if not stored.result():
            log.error("request_id_used_twice", request_id=metered.identity.request_id)
        self._table.clear(metered.slot)
        then()
        self._on_record()

    def _close_orphans(self) -> None:
        orphans = list(self._table.orphans())
        records = []
        for orphan in orphans:
            counters = orphan.counters or Counters()
            if not counters.finish_reason:
                counters.finish_reason = FinishReason.ERROR
            record = usage_record(orphan.identity, counters).SerializeToString()
            records.append((orphan.identity.request_id, record))
        if orphans:
            self._journal.append_now(records)
            log.info("orphans_closed", requests=len(orphans))
        for orphan in orphans:
            self._table.clear(orphan.slot)


def usage_record(identity: Identity, counters: Counters) -> pb.UsageRecord:
    """Return the protocol's record, without its journal sequence."""
    return pb.UsageRecord(
        request_id=identity.request_id,
        tenant=identity.tenant,
        project=identity.project,
        key=identity.key,
        session=identity.session,
        model=identity.model,
        worker_id=identity.worker_id,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        completion_tokens=counters.completion_tokens,
        kv_device_byte_seconds=counters.kv_device_byte_seconds,
        queue_seconds=counters.queue_seconds,
        ttft_seconds=counters.ttft_seconds,
        started_at=counters.started_at,
        finished_at=counters.finished_at,
        finish_reason=PB_REASON[FinishReason(counters.finish_reason)],
        num_preemptions=counters.num_preemptions,
    )
