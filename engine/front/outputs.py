"""The outputs of a request: the text, the tokens and the end of each, and what leaves of them when.

    Outputs             as they come; one output ends with the request itself
    ├ SeveralOutputs    `n` of them: each has its own end before the request's
    ├ Embedding         a request to embed: no text, a vector with the end
    └ ranking.py        `best_of` and beam search: the best of them, whole, when all have ended

Scores, the log-probabilities of tokens, leave with their tokens; the text of a token may come later.

The dispatcher gives them what the core did, counts what they say, and lets them report the end of the request once the
journal has it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine import ipc
from engine.errors import ProtocolError
from engine.front.connection import Stream
from engine.front.detokenize import TextStream
from engine.front.meter import PB_REASON
from engine.protocol import pb
from engine.request import FinishReason

_SEVERITY = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.ERROR)


@dataclass(slots=True, eq=False)
class LiveOutput:
    """One output: what the core said of it last."""

    index: int
    text: TextStream
    reason: FinishReason | None = None  # it has ended
    kv_byte_seconds: float = 0.0
    num_preemptions: int = 0


class Outputs:
    """Outputs whose text leaves as it comes; this class is that of a request with a single one."""

    def __init__(self, stream: Stream, texts: Sequence[TextStream], *, scored: bool = False) -> None:
        """Start with nothing generated. `scored`: the client asks for the log-probabilities of tokens."""
        self.num_tokens = 0  # generated so far, by all
        self.num_open = len(texts)  # those that have not ended
        self.detail = ""  # why they ended, where the reason alone does not tell
        self.field = ""  # of the request, where that is its own fault
        self._stream = stream
        self._scored = scored
        self._all = [LiveOutput(index, text) for index, text in enumerate(texts)]

    @property
    def num_outputs(self) -> int:
        """Outputs that are generated."""
        return len(self._all)

    @property
    def used(self) -> tuple[float, int]:
        """Byte·seconds of device KV and preemptions so far, of all: a block that they share counts once."""
        if len(self._all) == 1:
            (output,) = self._all
            return output.kv_byte_seconds, output.num_preemptions
        return sum([one.kv_byte_seconds for one in self._all]), sum([one.num_preemptions for one in self._all])

    @property
    def reason(self) -> FinishReason:
        """How the request ends, once all have ended."""
        return worst(self._all)

    def take(self, news: ipc.Output) -> bool:
        """Apply what a step did for one output. Return True when a stop string ended it while the core still runs it.

        Raises:
            ProtocolError: the core speaks of an output that nobody asked for.
        """
        if news.index >= len(self._all):
            raise ProtocolError(f"the core reports output {news.index} of a request with {len(self._all)}")
        output = self._all[news.index]
        output.kv_byte_seconds = news.kv_byte_seconds or output.kv_byte_seconds
        output.num_preemptions = news.num_preemptions or output.num_preemptions
        if output.reason is not None:  # by a stop string, of which the core did not know yet
            return False
        if news.prompt_scores:
            self._stream.post(prompt_scores=prompt_scores(news))
        stopped = bool(news.token_ids) and self._take_tokens(output, news)
        if stopped:
            self._end(output, FinishReason.STOP)
            return not news.finish_reason
        if news.finish_reason:
            self.detail, self.field = news.message or self.detail, news.field or self.field
            self._end(output, FinishReason(news.finish_reason))
        return False

    def end(self, reason: FinishReason, detail: str) -> None:
        """End all that have not ended."""
        self.detail, self.field = detail, ""
        for output in self._all:
            if output.reason is None:
                self._end(output, reason)

    def spoil(self, detail: str) -> None:
        """Let the end of the request, which is still to leave, say that it went wrong: all outputs have ended."""
        self.detail, self.field = detail, ""
        for output in self._all:
            output.reason = FinishReason.ERROR

    def report(self, usage: pb.Usage) -> None:
        """Post the end of the request, and what is left to be told before it."""
        (output,) = self._all
        self._stream.post(finished=self._finished(usage, output.text.flush()))
        self._stream.release()

    def _take_tokens(self, output: LiveOutput, news: ipc.Output) -> bool:
        """Count tokens and pass their text on; return whether a stop string has ended the output."""
        piece = output.text.push(news.token_ids, ended=news.finish_reason == FinishReason.STOP)
        self.num_tokens += piece.num_tokens
        delta = pb.Delta(token_ids=news.token_ids[: piece.num_tokens], text=piece.text)
        if self._scored:
            delta.scores.extend(token_scores(news, piece.num_tokens))
        self._stream.post(news.index, delta=delta)
        return piece.stopped

    def _end(self, output: LiveOutput, reason: FinishReason) -> None:
        output.reason = reason
        self.num_open -= 1

    def _finished(self, usage: pb.Usage, text: str = "") -> pb.Finished:
        reason = PB_REASON[self.reason]
        return pb.Finished(reason=reason, text=text, usage=usage, detail=self.detail, field=self.field)


class SeveralOutputs(Outputs):
    """Outputs that end one by one, each with what was still held back of its text."""

    def report(self, usage: pb.Usage) -> None:
        """Post the end of the request alone."""
        self._stream.post(finished=self._finished(usage))
        self._stream.release()

    def _end(self, output: LiveOutput, reason: FinishReason) -> None:
        super()._end(output, reason)
        finished = pb.OutputFinished(reason=PB_REASON[reason], text=output.text.flush())
        self._stream.post(output.index, output_finished=finished)


class Embedding(Outputs):
    """The single output of a request to embed. Whatever ends it before it has its vector is a failure."""

    def __init__(self, stream: Stream, texts: Sequence[TextStream]) -> None:
        super().__init__(stream, texts)
        self._vector: Sequence[float] = ()

    def take(self, news: ipc.Output) -> bool:
        """Keep the vector; otherwise as any output."""
        self._vector = news.embedding or self._vector
        return super().take(news)

    def _end(self, output: LiveOutput, reason: FinishReason) -> None:
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and not self._vector:
            self.detail, reason = self.detail or "the worker returned no embedding", FinishReason.ERROR
        super()._end(output, reason)

    def _finished(self, usage: pb.Usage, text: str = "") -> pb.Finished:
        finished = super()._finished(usage, text)
        if self.reason is FinishReason.STOP:
            finished.embedding.extend(self._vector)
        return finished


def token_scores(news: ipc.Output, count: int) -> list[pb.TokenScore]:
    """Return the scores of the first `count` tokens of what a step did."""
    tops = news.top or [[]] * count
    return [token_score(*one) for one in zip(news.logprobs[:count], tops[:count], strict=True)]


def token_score(logprob: float, top: Sequence[tuple[int, float]]) -> pb.TokenScore:
    """Return a score as it leaves."""
    ids, logprobs = zip(*top, strict=True) if top else ((), ())
    return pb.TokenScore(logprob=logprob, top_ids=ids, top_logprobs=logprobs)


def prompt_scores(news: ipc.Output) -> pb.PromptScores:
    """Return the scores of tokens of the prompt."""
    return pb.PromptScores(scores=[token_score(*one) for one in news.prompt_scores])


def worst(outputs: Iterable[LiveOutput]) -> FinishReason:
    """Return how a request with these outputs ends: as the one of them that went most wrong."""
    return max([output.reason for output in outputs if output.reason is not None], key=_SEVERITY.index)
