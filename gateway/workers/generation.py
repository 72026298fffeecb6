"""One request as its reader sees it: a mailbox that the demultiplexer fills and never waits for."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from engine.protocol import pb
from gateway.workers.errors import GenerationFailed, Refused, SlowConsumer

MAX_UNREAD = 1 << 20  # characters of text, and bytes of scores as they came, that a slow reader may leave unread before
# its request is cancelled
_JOINED_SCORES = 1024  # at most so many in one event
_INLINE_BYTES = 64_000  # of a prompt's scores; longer ones are read in a thread, so that other streams get their turn
_GOOD_ENDS = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)


class Admitted(msgspec.Struct, frozen=True):
    """The worker took the request; each output may have `max_tokens`."""

    max_tokens: int


class TokenScore(NamedTuple):
    """Natural log-probabilities at one place, by the model's own distribution."""

    logprob: float  # of the token that is there
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability) of the likeliest ones, best first


class Delta(msgspec.Struct, frozen=True):
    """More text of an output: of one step, or of several where the reader was slower than the worker.

    Where the request asks for log-probabilities, `tokens` are those generated meanwhile, and `scores` theirs, one each;
    else both are empty. Text that is held back, such as half a character, comes later than its token.
    """

    text: str
    index: int = 0
    tokens: tuple[int, ...] = ()
    scores: tuple[TokenScore, ...] = ()


class PromptScores(msgspec.Struct, frozen=True):
    """Of the prompt's tokens from the second on, where they are asked for and there are any: before the first delta."""

    scores: tuple[TokenScore, ...]


class OutputFinished(msgspec.Struct, frozen=True):
    """The end of one of several outputs. `text` is what had not been read or told before."""

    reason: int  # FINISH_REASON_STOP or FINISH_REASON_LENGTH
    text: str
    index: int


class Finished(msgspec.Struct, frozen=True):
    """The end, and of a request with one output that output's own, with the text that had been held back.

    Counts are in tokens, of the request: its prompt once, and all that was generated for it.
    """

    reason: int  # FINISH_REASON_STOP or FINISH_REASON_LENGTH
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    embedding: tuple[float, ...] = ()  # of a request to embed: the mean of its last hidden states, not normalised


Event = Admitted | PromptScores | Delta | OutputFinished | Finished


def tells_at_the_end(submit: pb.Submit) -> bool:
    """Tell whether a worker keeps text and tokens of a request back until all its outputs have ended."""
    return submit.best_of > max(submit.n, 1) or submit.HasField("beam_search")


class _Unread:
    """What the reader of one output has not read. Scores stay as they came, which takes a tenth of the memory."""

    __slots__ = ("is_ready", "scored", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []  # behind what is scored
        self.scored: deque[bytes] = deque()  # deltas with scores, and those behind them
        self.is_ready = False  # there is something to read

    def add(self, delta: pb.Delta) -> int:
        """Add a delta; return its size."""
        if not (delta.scores or self.scored):
            self.texts.append(delta.text)
            return len(delta.text)
        num_before = 0
        if self.texts:
            text, num_before = self.take_text()
            self.scored.append(pb.Delta(text=text).SerializeToString())
            num_before -= len(self.scored[-1])
        self.scored.append(delta.SerializeToString())
        return len(self.scored[-1]) - num_before

    def take_text(self) -> tuple[str, int]:
        """Return the text behind all scores, and its size."""
        text = self.texts[0] if len(self.texts) == 1 else "".join(self.texts)
        self.texts.clear()
        return text, len(text)

    def take_scored(self, index: int) -> tuple[Delta, int]:
        """Return scores and their text, joined as far as is good to have at once, and their size."""
        texts: list[str] = []
        tokens: list[int] = []
        scores: list[TokenScore] = []
        size = 0
        while self.scored and len(tokens) < _JOINED_SCORES:
            raw = self.scored.popleft()
            size += len(raw)
            delta = pb.Delta.FromString(raw)
            texts.append(delta.text)
            if delta.scores:
                tokens += delta.token_ids
                scores += map(_score, delta.scores)
        return Delta("".join(texts), index, tuple(tokens), tuple(scores)), size


class Generation:
    """A request on its way through one worker.

        async with client.submit(submit) as generation:
            async for event in generation: ...

    Leaving the block before the end sends the worker a Cancel at once. Unread deltas of an output are joined into one,
    so that the mailbox is bounded by MAX_UNREAD and one step's message is never held up by a slow reader.

    Args:
        leave: tells the client to forget this request and the worker to cancel it.
        num_outputs: how many outputs end before the request does; with one, its end is the request's.
        whole: every output comes in one piece, when all have ended. No reader could be quicker, so none is too slow.
        on_tokens: told of tokens as they come, how many at once.
    """

    __slots__ = (
        "_admitted",
        "_end",
        "_ended",
        "_leave",
        "_limit",
        "_num_unread",
        "_on_tokens",
        "_prompt",
        "_ready",
        "_unread",
        "_waiter",
        "num_tokens",
        "over",
    )

    def __init__(
        self,
        leave: Callable[[], None],
        num_outputs: int = 1,
        *,
        whole: bool = False,
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        self._leave = leave
        self._on_tokens = on_tokens
        self._limit = None if whole else MAX_UNREAD
        self._admitted: Admitted | None = None
        self._prompt: list[bytes] = []  # scores of the prompt, as they come; they are read in one piece
        self._unread = [_Unread() for _ in range(num_outputs)]
        self._ended: dict[int, int] = {}  # reasons, of several outputs those that have ended
        self._ready: deque[int] = deque()  # outputs with something unread, in the order in which it came
        self._num_unread = 0
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

    @property
    def pending(self) -> bool:
        """Whether `next` returns, or raises, without a wait."""
        return self._admitted is not None or bool(self._ready) or self._end is not None

    async def next(self, seconds: float | None = None) -> Event | None:
        """Return the next event; None when `seconds` pass without one, or after the end.

        Raises:
            Refused: the worker did not take the request, or ended it for its own fault.
            GenerationFailed, SlowConsumer: it ended before its time.
            Exception: what was given to `fail`.
        """
        if not self.pending:
            await self._wait(seconds)
        if self._admitted is not None:
            event, self._admitted = self._admitted, None
            return event
        if self._prompt and (self._ready or isinstance(self._end, Finished)):  # all of them are there
            pieces, self._prompt = self._prompt, []
            return await asyncio.to_thread(_read_prompt, pieces) if _is_long(pieces) else _read_prompt(pieces)
        if self._ready:
            return self._read(self._ready.popleft())
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
            delta = event.delta
            self.num_tokens += len(delta.token_ids)
            if self._on_tokens is not None:
                self._on_tokens(len(delta.token_ids))
            if delta.text or delta.scores:
                self._append(event.index, delta)
            return
        if kind == "prompt_scores":
            self._prompt.append(event.prompt_scores.SerializeToString())
            return
        if kind == "output_finished":
            self._end_output(event.index, event.output_finished)
        elif kind == "admitted":
            self._admitted = Admitted(event.admitted.max_tokens)
        elif kind == "finished":
            self.over = True
            self._end = self._end_of(event.finished)
        elif kind == "refused":
            self.over = True
            self._end = Refused(event.refused.code, event.refused.message, event.refused.field)
        self._wake()

    def _append(self, index: int, delta: pb.Delta) -> None:
        if index >= len(self._unread) or index in self._ended:
            self.fail(GenerationFailed(f"the worker sent text of output {index}, which is not awaited"))
            return
        unread = self._unread[index]
        if not unread.is_ready:
            unread.is_ready = True
            self._ready.append(index)
        self._num_unread += unread.add(delta)
        if self._limit is not None and self._num_unread > self._limit:
            self.fail(SlowConsumer(f"{self._limit} characters were generated and not read: the request was cancelled"))
        self._wake()

    def _end_output(self, index: int, end: pb.OutputFinished) -> None:
        if end.reason not in _GOOD_ENDS:
            return  # the request's own end follows and says why
        self._append(index, pb.Delta(text=end.text))
        self._ended[index] = end.reason

    def _read(self, index: int) -> Delta | OutputFinished:
        unread, reason = self._unread[index], self._ended.get(index)
        if unread.scored:
            delta, size = unread.take_scored(index)
            self._num_unread -= size
            unread.is_ready = bool(unread.scored or reason is not None)
            if unread.is_ready:
                self._ready.appendleft(index)
            return delta
        text, size = unread.take_text()
        self._num_unread -= size
        unread.is_ready = False
        return Delta(text, index) if reason is None else OutputFinished(reason, text, index)

    def _end_of(self, finished: pb.Finished) -> Finished | GenerationFailed | Refused:
        if finished.field:
            return Refused(pb.REFUSAL_CODE_INVALID, finished.detail, finished.field)
        if finished.reason not in _GOOD_ENDS:
            return GenerationFailed(finished.detail or "the worker cancelled the request")
        if len(self._unread) > 1 and len(self._ended) < len(self._unread):
            return GenerationFailed(f"the worker gave {len(self._ended)} of {len(self._unread)} outputs")
        usage = finished.usage
        return Finished(
            finished.reason,
            finished.text,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            tuple(finished.embedding),
        )

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


def _is_long(pieces: Sequence[bytes]) -> bool:
    """Say whether reading scores would hold other requests up."""
    return sum(map(len, pieces)) > _INLINE_BYTES


def _read_prompt(pieces: Sequence[bytes]) -> PromptScores:
    return PromptScores(tuple(_score(one) for piece in pieces for one in pb.PromptScores.FromString(piece).scores))


def _score(score: pb.TokenScore) -> TokenScore:
    return TokenScore(score.logprob, tuple(zip(score.top_ids, score.top_logprobs, strict=True)))
