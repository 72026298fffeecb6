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
from gateway.workers.generation import Admitted, Delta, Event, Finished

PING_SECONDS = 15.0  # the status line waits so long for admission; later a silence so long is filled by a ping


async def stream(exchange: Exchange, running: Running, shape: Shape, *, include_usage: bool) -> None:
    """Stream every event as it comes; the status line goes out with the first, so that a refusal is still a status.

    Raises:
        ApiError, WorkerError: before the status line; after it they become an error event.
    """
    ends: dict[int, Finished] = {}
    try:
        async with aclosing(_events(running.runs)) as events:
            async for index, event in events:
                if not exchange.status:
                    exchange.headers += running.permit.headers(time.monotonic())
                    await exchange.start(200, sse.HEADERS)
                await exchange.write(_frame(shape, index, event))
                if isinstance(event, Finished):
                    ends[index] = event
    except (ApiError, WorkerError) as error:
        if not exchange.status:
            raise
        reason = error if isinstance(error, ApiError) else from_worker(error)
        exchange.noted["error"] = reason.error_code or reason.type
        await exchange.write(sse.event(reason.body()) + sse.DONE)
        await exchange.end()
        return
    last = sse.event(shape.usage(list(ends.values()))) if include_usage else b""
    await exchange.write(last + sse.DONE)
    await exchange.end()
    _note(exchange, list(ends.values()))


async def collect(exchange: Exchange, running: Running, shape: Shape) -> None:
    """Answer with the whole output.

    Raises:
        ApiError, WorkerError: any run failed; nothing has been sent.
    """
    texts: list[list[str]] = [[] for _ in running.runs]
    ends: dict[int, Finished] = {}
    async with aclosing(_events(running.runs)) as events:
        async for index, event in events:
            if isinstance(event, Delta | Finished):
                texts[index].append(event.text)
            if isinstance(event, Finished):
                ends[index] = event
    ordered = [ends[index] for index in range(len(running.runs))]
    exchange.headers += running.permit.headers(time.monotonic())
    await exchange.json(shape.whole(["".join(parts) for parts in texts], ordered))
    _note(exchange, ordered)


def _frame(shape: Shape, index: int, event: Event | None) -> bytes:
    if event is None:
        return sse.PING
    if isinstance(event, Admitted):
        opening = shape.opening(index)
        return b"" if opening is None else sse.event(opening)
    text = sse.event(shape.delta(index, event.text)) if event.text else b""
    return text + sse.event(shape.closing(index, event.reason)) if isinstance(event, Finished) else text


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
