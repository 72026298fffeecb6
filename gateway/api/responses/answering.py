"""Answer with a response while its client waits: as events, or as one object. It is stored before its end is told."""

import time

import structlog

from gateway.api import sse
from gateway.api.errors import ApiError, from_worker
from gateway.api.exchange import Exchange
from gateway.api.respond import PING_SECONDS
from gateway.api.responses.document import Ending, Step, encoded
from gateway.api.responses.frames import frames
from gateway.api.responses.narrator import Event, Narrator
from gateway.api.responses.objects import error_of
from gateway.api.responses.planning import Plan
from gateway.api.responses.scribe import ending_of, joined
from gateway.api.running import Running
from gateway.reads import StoreAway
from gateway.workers.errors import WorkerError
from gateway.workers.generation import Event as WorkerEvent
from gateway.workers.generation import Finished
from tenants.contracts import ResponseRecord

_log = structlog.get_logger("gateway.responses")


async def stream(exchange: Exchange, plan: Plan, running: Running) -> None:
    """Tell every event as it comes; the status line goes out with the first, so that a refusal is still a status.

    Raises:
        ApiError, WorkerError: before the status line; after it the response ends as failed.
    """
    exchange.ends(running.runs)
    [run] = running.runs
    scribe, narrator = plan.scribe(), Narrator(plan.document.head)
    steps: list[Step] = []
    event: WorkerEvent | None = None
    data = b""
    try:
        while not isinstance(event, Finished):
            event = await run.next(PING_SECONDS)
            if not exchange.status:
                exchange.headers += running.permit.headers(time.monotonic())
                await exchange.start(200, sse.HEADERS)
                data += frames(narrator.opening(), plan.padded)
            data += sse.PING if event is None else b""
            for step in scribe.take(event):
                steps.append(step)
                data += frames(narrator.take(step), plan.padded)
            if data and not isinstance(event, Finished) and not run.pending:
                await exchange.write(data)
                data = b""
        ending = ending_of(event, time.time())
        note(exchange, event)
    except (ApiError, WorkerError) as error:
        if not exchange.status:
            raise
        ending = failed(error if isinstance(error, ApiError) else from_worker(running.named(error)))
        exchange.noted["error"] = "response_failed"
    last = await _ended(exchange, plan, steps, ending, narrator)
    await exchange.write(data + frames(last, plan.padded))
    await exchange.end()


async def collect(exchange: Exchange, plan: Plan, running: Running) -> None:
    """Answer with the whole response.

    Raises:
        ApiError, WorkerError: it failed; nothing has been sent, and nothing is stored.
    """
    exchange.ends(running.runs)
    [run] = running.runs
    scribe = plan.scribe()
    steps: list[Step] = []
    event: WorkerEvent | None = None
    while not isinstance(event, Finished):
        event = await run.next()
        steps += scribe.take(event)
    narrator = Narrator(plan.document.head)
    for step in joined(steps):
        narrator.take(step)
    note(exchange, event)
    last = await _ended(exchange, plan, steps, ending_of(event, time.time()), narrator)
    exchange.headers += running.permit.headers(time.monotonic())
    await exchange.json(last[-1]["response"])


def failed(error: ApiError) -> Ending:
    """Return the end of a response that failed now."""
    return Ending(status="failed", at=int(time.time()), error=error_of(error))


def note(exchange: Exchange, end: Finished) -> None:
    """Tell the log how many tokens there were."""
    exchange.noted |= {"prompt_tokens": end.prompt_tokens, "completion_tokens": end.completion_tokens}


async def _ended(exchange: Exchange, plan: Plan, steps: list[Step], ending: Ending, narrator: Narrator) -> list[Event]:
    """Store a response that has ended and return its last events, which say so where it could not be stored."""
    events = narrator.end(ending)
    if not plan.stored:
        return events
    data = encoded(plan.document_of(joined(steps), ending))
    if data is not None:
        record = ResponseRecord(
            id=plan.id,
            status=ending.status,
            background=False,
            created_at=plan.document.head["created_at"],
            document=data,
        )
        try:
            await exchange.web.responses.keep(plan.owner, record)
            return events
        except StoreAway as error:
            _log.warning("response_not_stored", response_id=plan.id, reason=str(error))
    events[-1]["response"]["store"] = False
    return events
