"""A response that goes on without its client: what there is of it is stored once a second, under a lease.

    start ─▶ admitted and stored ─▶ the client has its answer
                 │
                 ▼
             steps ─▶ go_on once a second ─▶ the end, stored before anybody is told of it

A process that dies leaves a lease that runs out: from then on the response counts as failed, whoever reads it. Who
cancels or deletes it writes to its row and notifies all web processes; should the word be lost, the next `go_on` learns
it from the row.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import structlog

from gateway.api.errors import ApiError, Headers, InternalError, Overloaded, WorkerFailed, from_worker
from gateway.api.responses.answering import failed
from gateway.api.responses.document import Ending, Step, encoded
from gateway.api.responses.planning import Plan
from gateway.api.responses.scribe import ending_of
from gateway.api.running import Running, running
from gateway.reads import StoreAway
from gateway.routing.route import Routed
from gateway.web import Web
from gateway.workers.errors import WorkerError
from gateway.workers.generation import Event, Finished
from tenants.contracts import KeyGrant, ResponseRecord
from tenants.services import responses as services

SAVE_SECONDS = 1.0  # between two times that what has come is stored; more for a large response
SAVE_BYTES_A_SECOND = 256 << 10
BEAT_SECONDS = 20.0  # between two times that the lease is extended while nothing comes
AGAIN_SECONDS = 1.0  # until an end is written again that could not be

_log = structlog.get_logger("gateway.responses")


class Stopped(Exception):
    """The response was cancelled or deleted, or its lease is over: nothing is written of it any more."""


class BackgroundRun:
    """One response in the background of this process."""

    def __init__(self, web: Web, grant: KeyGrant, plan: Plan) -> None:
        self.owner = plan.owner
        self.plan = plan
        self.steps: list[Step] = []
        self.ending: Ending | None = None  # once it is stored
        self._web = web
        self._grant = grant
        self._run: Routed | None = None
        self._error: Exception | None = None  # that ends it from outside
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Headers:
        """Admit and store it, and let it go on; return the headers of its answer.

        Raises:
            ApiError, WorkerError: it can't begin; nothing is stored.
        """
        self._web.responses.enter(self.plan.id, self)
        begun: asyncio.Future[Headers] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(begun), name=f"background {self.plan.id}")
        return await begun

    def stop(self) -> None:
        """End it: it was cancelled or deleted."""
        self.fail(Stopped())

    def fail(self, error: Exception) -> None:
        """End it with `error`."""
        self._error = self._error or error
        if self._run is not None:
            self._run.fail(error)

    async def news(self, seconds: float) -> None:
        """Wait until there is more of it, `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def _live(self, begun: "asyncio.Future[Headers]") -> None:
        """Generate to the end; whatever goes wrong before it has begun is for who waits for that."""
        self._web.drain.enter(self)
        try:
            ending = await self._generate(begun)
            if ending is not None and not await self._stored(ending):
                ending = None
            self.ending = ending or Ending(status="cancelled", at=int(time.time()))
        except Exception as error:  # noqa: BLE001  # whoever waits for the beginning raises it; later it is a defect
            if begun.done():
                _log.exception("response_failed", response_id=self.plan.id)
                self.ending = failed(InternalError())
            else:
                begun.set_exception(error)
        finally:
            self._tell()
            self._web.responses.leave(self.plan.id)
            self._web.drain.leave(self)

    async def _generate(self, begun: "asyncio.Future[Headers]") -> Ending | None:
        """Return how it ended, None: it was stopped. Raises what keeps it from beginning."""
        async with running(self._web, self._grant, self.plan.job) as started:
            [self._run] = started.runs
            record = self._record()
            assert record is not None, "the plan has checked its size"
            try:
                await self._web.responses.keep(self.owner, record)
            except StoreAway as error:
                raise Overloaded("Responses can't be stored just now. Try again in a moment.") from error
            begun.set_result(started.permit.headers(time.monotonic()))
            if self._error is not None:
                self._run.fail(self._error)
            saving = asyncio.create_task(self._save(), name=f"saving {self.plan.id}")
            try:
                return await self._write_down(started)
            finally:
                saving.cancel()
                await asyncio.gather(saving, return_exceptions=True)

    async def _write_down(self, started: Running) -> Ending | None:
        [run] = started.runs
        scribe = self.plan.scribe()
        event: Event | None = None
        try:
            while not isinstance(event, Finished):
                event = await run.next()
                if steps := scribe.take(event):
                    self.steps += steps
                    self._tell()
            return ending_of(event, time.time())
        except Stopped:
            return None
        except ApiError as error:
            return failed(error)
        except WorkerError as error:
            return failed(from_worker(started.named(error)))
        except Exception:  # noqa: BLE001  # a defect ends one response, which says so
            _log.exception("response_failed", response_id=self.plan.id)
            return failed(InternalError())

    async def _save(self) -> None:
        """Store what has come, now and then, for as long as the row is ours."""
        num_stored, beat_at, pause = -1, 0.0, SAVE_SECONDS
        while True:
            await asyncio.sleep(pause)
            if len(self.steps) == num_stored and time.monotonic() < beat_at:
                continue
            count = len(self.steps)
            record = self._record()
            if record is None:
                self.fail(WorkerFailed("The response has become larger than a stored one may be."))
                return
            pause = SAVE_SECONDS + len(record.document) / SAVE_BYTES_A_SECOND
            try:
                if not await self._web.responses.go_on(self.owner, record):
                    self.stop()
                    return
            except StoreAway as error:
                _log.warning("response_not_saved", response_id=self.plan.id, reason=str(error))
                continue
            num_stored, beat_at = count, time.monotonic() + BEAT_SECONDS

    async def _stored(self, ending: Ending) -> bool:
        """Store the end, for as long as the lease is ours. False: it has ended otherwise."""
        record = self._record(ending) or self._record(failed(WorkerFailed("The response is too large to store.")), ())
        assert record is not None
        deadline = time.monotonic() + services.LEASE_SECONDS
        while True:
            try:
                if await self._web.responses.go_on(self.owner, record):
                    return True
                # A write that seemed to fail may have come through.
                found = await self._web.responses.read(self.owner, record.id)
                return found is not None and found.status == record.status
            except StoreAway as error:
                if time.monotonic() > deadline:
                    _log.error("response_end_not_stored", response_id=self.plan.id, reason=str(error))
                    return False
            await asyncio.sleep(AGAIN_SECONDS)

    def _record(self, ending: Ending | None = None, steps: Sequence[Step] | None = None) -> ResponseRecord | None:
        """Return what is to be stored; None: it is too large."""
        document = self.plan.document_of(tuple(self.steps if steps is None else steps), ending)
        data = encoded(document)
        if data is None:
            return None
        taken = any(step.kind == "admitted" for step in self.steps[:1])
        return ResponseRecord(
            id=self.plan.id,
            status=ending.status if ending is not None else "in_progress" if taken else "queued",
            background=True,
            created_at=document.head["created_at"],
            document=data,
        )

    def _tell(self) -> None:
        """Wake who waits for more."""
        self._news.set()
        self._news = asyncio.Event()
