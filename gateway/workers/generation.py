"""One request as its reader sees it: a mailbox that the demultiplexer fills and never waits for."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from engine.protocol import pb
from gateway.workers.errors import GenerationFailed, Refused, SlowConsumer

MAX_UNREAD = 1 << 20  # characters of text that a slow reader may leave unread before its request is cancelled


@dataclass(frozen=True, slots=True)
class Admitted:
    """The worker took the request; it may generate `max_tokens`."""

    max_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """More text: of one step, or of several where the reader was slower than the worker."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `text` is what had been held back; counts are in tokens."""

    reason: int  # FINISH_REASON_STOP or FINISH_REASON_LENGTH
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


Event = Admitted | Delta | Finished


class Generation:
    """A request on its way through one worker.

        async with client.submit(submit) as generation:
            async for event in generation: ...

    Leaving the block before the end sends the worker a Cancel at once. Unread deltas are joined into one, so that the
    mailbox is bounded by MAX_UNREAD and one step's message is never held up by a slow reader.
    """

    __slots__ = ("_admitted", "_end", "_leave", "_text", "_unread", "_waiter", "num_tokens", "over")

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave  # tells the client to forget this request and the worker to cancel it
        self._admitted: Admitted | None = None
        self._text: list[str] = []
        self._unread = 0
        self._end: Finished | Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.num_tokens = 0  # generated so far, as the worker told
        self.over = False  # the worker knows this request no more

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, seconds: float | None = None) -> Event | None:
        """Return the next event; None when `seconds` pass without one, or after the end.

        Raises:
            Refused: the worker did not take the request.
            GenerationFailed, SlowConsumer: it ended before its time.
            Exception: what was given to `fail`.
        """
        if not self._pending():
            await self._wait(seconds)
        if self._admitted is not None:
            event, self._admitted = self._admitted, None
            return event
        if self._text:
            text = "".join(self._text)
            self._text.clear()
            self._unread = 0
            return Delta(text)
        if isinstance(self._end, Exception):
            raise self._end
        end, self._end = self._end, None
        return end

    def cancel(self) -> None:
        """Stop the request if it runs; the worker frees its blocks within one step."""
        if not self.over:
            self.over = True
            self._leave()

    def fail(self, error: Exception) -> None:
        """End the request with `error`, which `next` raises after what was already there."""
        self.cancel()
        if self._end is None:
            self._end = error
        self._wake()

    def take(self, event: pb.Event) -> None:
        """Take one event of the worker's. Called by the demultiplexer alone."""
        kind = event.WhichOneof("kind")
        if kind == "delta":
            self.num_tokens += len(event.delta.token_ids)
            self._append(event.delta.text)
            return
        if kind == "admitted":
            self._admitted = Admitted(event.admitted.max_tokens)
        elif kind == "finished":
            self.over = True
            self._end = _end_of(event.finished)
        elif kind == "refused":
            self.over = True
            self._end = Refused(event.refused.code, event.refused.message, event.refused.field)
        self._wake()

    def _append(self, text: str) -> None:
        if not text:
            return
        self._text.append(text)
        self._unread += len(text)
        if self._unread > MAX_UNREAD:
            self.fail(SlowConsumer(f"{MAX_UNREAD} characters were generated and not read: the request was cancelled"))
        self._wake()

    def _pending(self) -> bool:
        return self._admitted is not None or bool(self._text) or self._end is not None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, seconds: float | None) -> None:
        if self.over:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


def _end_of(finished: pb.Finished) -> Finished | GenerationFailed:
    if finished.reason not in (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH):
        return GenerationFailed(finished.detail or "the worker cancelled the request")
    usage = finished.usage
    return Finished(finished.reason, finished.text, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
