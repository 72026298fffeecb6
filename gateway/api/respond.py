"""Carry a running job's events to the client: as server-sent events, or as one JSON body."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from gateway.api import sse
from gateway.api.errors import ApiError, from_worker
from gateway.api.exchange import Exchange
from gateway.api.running import Running
from gateway.api.shapes import Output, Shape
from gateway.routing.route import Routed
from gateway.workers.errors import WorkerError
from gateway.workers.generation import Admitted, Delta, Event, Finished, OutputFinished, PromptScores, TokenScore

INLINE_SCORES = 2048  # log-probabilities of an answer; more are written in a thread, so that others get their turn
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
                if isinstance(event, PromptScores):
                    await asyncio.to_thread(shape.scored, number, event.scores)
                frames += _frames(shape, running.num_outputs, number, event)
                if isinstance(event, Finished):
                    ends.append(event)
                if frames and len(ends) < len(running.runs) and not running.pending:
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
    await exchange.write(frames + shape.usage(ends) + sse.DONE)
    await exchange.end()
    _note(exchange, ends)


async def collect(exchange: Exchange, running: Running, shape: Shape) -> None:
    """Answer with all outputs, whole.

    Raises:
        ApiError, WorkerError: any run failed; nothing has been sent.
    """
    count = running.num_outputs
    choices = [_Choice() for _ in range(count * len(running.runs))]
    ends: list[Finished] = []
    async with aclosing(_events(running.runs)) as events:
        async for number, event in events:
            if isinstance(event, Delta):
                choices[number * count + event.index].take(event)
            elif isinstance(event, PromptScores):
                await asyncio.to_thread(shape.scored, number, event.scores)  # a long prompt has very many
            elif (ended := _ended(event, count)) is not None:
                choices[number * count + ended.index].end(ended)
            if isinstance(event, Finished):
                ends.append(event)
    exchange.headers += running.permit.headers(time.monotonic())
    outputs = [choice.output() for choice in choices]
    if sum(1 + len(score.top) for output in outputs for score in output.scores) > INLINE_SCORES:
        await exchange.json(await asyncio.to_thread(shape.whole, outputs, ends))
    else:
        await exchange.json(shape.whole(outputs, ends))
    _note(exchange, ends)


class _Choice:
    """A choice that is being collected."""

    __slots__ = ("_reason", "_scores", "_texts", "_tokens")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._scores: list[TokenScore] = []
        self._reason = 0

    def take(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        if delta.tokens:
            self._tokens += delta.tokens
            self._scores += delta.scores

    def end(self, ended: OutputFinished) -> None:
        self._texts.append(ended.text)
        self._reason = ended.reason

    def output(self) -> Output:
        text, tokens, scores = "".join(self._texts), tuple(self._tokens), tuple(self._scores)
        return Output(text=text, reason=self._reason, tokens=tokens, scores=scores)


def _frames(shape: Shape, count: int, number: int, event: Event | None) -> bytes:
    """Return the chunks of one event of run `number`, each of which has `count` choices, numbered run after run."""
    if event is None:
        return sse.PING
    if isinstance(event, Delta):
        return shape.delta(number * count + event.index, event)
    if isinstance(event, Admitted | PromptScores):
        return shape.opening(number)
    ended = _ended(event, count)
    return b"" if ended is None else shape.closing(number * count + ended.index, ended.text, ended.reason)


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
