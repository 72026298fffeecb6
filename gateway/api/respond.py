"""Carry a running job's events to the client: as server-sent events, or as one JSON body."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from gateway.api import sse
from gateway.api.errors import ApiError, from_worker
from gateway.api.exchange import Exchange
from gateway.api.running import Running
from gateway.api.shapes import Shape
from gateway.routing.route import Routed
from gateway.workers.errors import WorkerError
from gateway.workers.generation import Admitted, Delta, Event, Finished, OutputFinished

PING_SECONDS = 15.0  # the status line waits so long for admission; later a silence so long is filled by a ping


async def answer(exchange: Exchange, running: Running, shape: Shape, *, streamed: bool) -> None:
    """Answer with the outputs of a started job; they end when the client leaves. Raises as `stream` and `collect`."""
    exchange.ends(running.runs)
    if streamed:
        await stream(exchange, running, shape)
    else:
        await collect(exchange, running, shape)


async def stream(exchange: Exchange, running: Running, shape: Shape) -> None:
    """Stream every event as it comes; the status line goes out with the first, so that a refusal is still a status.

    What has come at once, such as a step's text of several outputs, is written at once.

    Raises:
        ApiError, WorkerError: before the status line; after it they become an error event.
    """
    ends: list[Finished] = []
    frames = b""
    try:
        async with aclosing(_events(running.runs)) as events:
            async for number, event in events:
                if not exchange.status:
                    exchange.headers += running.permit.headers(time.monotonic())
                    await exchange.start(200, sse.HEADERS)
                frames += _frames(shape, running.num_outputs, number, event)
                if isinstance(event, Finished):
                    ends.append(event)
                if len(ends) < len(running.runs) and not running.pending:
                    await exchange.write(frames)
                    frames = b""
    except (ApiError, WorkerError) as error:
        if not exchange.status:
            raise
        reason = error if isinstance(error, ApiError) else from_worker(running.named(error))
        exchange.noted["error"] = reason.error_code or reason.type
        await exchange.write(frames + sse.event(reason.body()) + sse.DONE)
        await exchange.end()
        return
    usage = shape.usage(ends)
    await exchange.write(frames + (b"" if usage is None else sse.event(usage)) + sse.DONE)
    await exchange.end()
    _note(exchange, ends)


async def collect(exchange: Exchange, running: Running, shape: Shape) -> None:
    """Answer with all outputs, whole.

    Raises:
        ApiError, WorkerError: any run failed; nothing has been sent.
    """
    count = running.num_outputs
    texts: list[list[str]] = [[] for _ in range(count * len(running.runs))]
    reasons = [0] * len(texts)
    ends: list[Finished] = []
    async with aclosing(_events(running.runs)) as events:
        async for number, event in events:
            if isinstance(event, Delta):
                texts[number * count + event.index].append(event.text)
            elif (ended := _ended(event, count)) is not None:
                index = number * count + ended.index
                texts[index].append(ended.text)
                reasons[index] = ended.reason
            if isinstance(event, Finished):
                ends.append(event)
    exchange.headers += running.permit.headers(time.monotonic())
    await exchange.json(shape.whole(["".join(parts) for parts in texts], reasons, ends))
    _note(exchange, ends)


def _frames(shape: Shape, count: int, number: int, event: Event | None) -> bytes:
    """Return the chunks of one event of run `number`, each of which has `count` choices, numbered run after run."""
    if event is None:
        return sse.PING
    first = number * count
    if isinstance(event, Delta):
        return sse.event(shape.delta(first + event.index, event.text))
    if isinstance(event, Admitted):
        openings = [shape.opening(first + index) for index in range(count)]
        return b"".join(sse.event(opening) for opening in openings if opening is not None)
    ended = _ended(event, count)
    if ended is None:
        return b""
    index = first + ended.index
    text = sse.event(shape.delta(index, ended.text)) if ended.text else b""
    return text + sse.event(shape.closing(index, ended.reason))


def _ended(event: Event | None, count: int) -> OutputFinished | None:
    """Return the end of an output, if the event is one: where a run has one output, its end is the run's."""
    if isinstance(event, Finished) and count == 1:
        return OutputFinished(event.reason, event.text, 0)
    return event if isinstance(event, OutputFinished) else None


async def _events(runs: Sequence[Routed]) -> AsyncGenerator[tuple[int, Event | None], None]:
    """Yield the events of all runs as they come, None for a silence, until every run has finished."""
    if len(runs) > 1:
        async with aclosing(_merged(runs)) as events:
            async for item in events:
                yield item
        return
    event: Event | None = None
    while not isinstance(event, Finished):
        event = await runs[0].next(PING_SECONDS)
        yield 0, event


async def _merged(runs: Sequence[Routed]) -> AsyncGenerator[tuple[int, Event | None], None]:
    queue: asyncio.Queue[tuple[int, Event | Exception]] = asyncio.Queue(len(runs))

    async def pump(index: int, run: Routed) -> None:
        event: Event | None = None
        try:
            while not isinstance(event, Finished):
                event = await run.next()
                assert event is not None
                await queue.put((index, event))
        except Exception as error:  # noqa: BLE001  # raised again by the reader of the queue
            await queue.put((index, error))

    pumps = [asyncio.create_task(pump(index, run)) for index, run in enumerate(runs)]
    try:
        left = len(runs)
        while left:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    index, event = await queue.get()
            except TimeoutError:
                yield 0, None
                continue
            if isinstance(event, Exception):
                raise event
            left -= isinstance(event, Finished)
            yield index, event
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _note(exchange: Exchange, ends: Sequence[Finished]) -> None:
    exchange.noted["prompt_tokens"] = sum(end.prompt_tokens for end in ends)
    exchange.noted["completion_tokens"] = sum(end.completion_tokens for end in ends)
