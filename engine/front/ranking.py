"""Outputs of which the best come back, best first, when all have ended: `best_of` and beam search.

Until then they are kept here, numbers as four bytes each and text as one buffer an output, so that a request holds at
most its outputs times `max_tokens` of them. What is generated counts as it comes, dropped outputs included.
"""

import io
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence

from engine import ipc
from engine.front.connection import Stream, Whole
from engine.front.detokenize import TextStream
from engine.front.meter import PB_REASON
from engine.front.outputs import LiveOutput, Outputs, token_score, worst
from engine.protocol import pb
from engine.request import FinishReason

_TOKEN_BYTES = 3  # of a token id in a message, about
_SCORE_BYTES = 12  # of a token's own log-probability
_TOP_BYTES = 7  # of a likely token and its log-probability
_DELTA_TOKENS = 1024  # of an output, at once
_GOOD_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


class Scores:
    """Log-probabilities of the tokens of one output, in little room."""

    def __init__(self) -> None:
        self.logprobs = array("f")
        self._width = 0  # likely tokens of each place
        self._top_ids = array("I")
        self._top_logprobs = array("f")

    @property
    def num_bytes(self) -> int:
        """About what they take as they leave."""
        return _SCORE_BYTES * len(self.logprobs) + _TOP_BYTES * len(self._top_ids)

    def add(self, news: ipc.Output, count: int) -> None:
        """Add those of the first `count` tokens of what a step did."""
        self.logprobs.extend(news.logprobs[:count])
        for top in news.top[:count]:
            self._width = len(top)
            for token_id, logprob in top:
                self._top_ids.append(token_id)
                self._top_logprobs.append(logprob)

    def between(self, start: int, end: int) -> Iterator[pb.TokenScore]:
        """Return those of the tokens `[start, end)`, as they leave."""
        for index in range(start, min(end, len(self.logprobs))):
            top = slice(index * self._width, (index + 1) * self._width)
            pairs = tuple(zip(self._top_ids[top], self._top_logprobs[top], strict=True))
            yield token_score(self.logprobs[index], pairs)


class BestOutputs(Outputs, ABC):
    """Outputs that leave at the end; of a request that was cancelled or failed none does."""

    def __init__(self, stream: Stream, texts: Sequence[TextStream], num_returned: int, *, scored: bool = False) -> None:
        super().__init__(stream, texts, scored=scored)
        self._num_returned = num_returned
        self._token_ids = [array("I") for _ in texts]
        self._scores = [Scores() for _ in texts]
        self._best: list[LiveOutput] = []  # once all have ended

    @property
    def reason(self) -> FinishReason:
        """How the request ends, once all have ended: what was dropped does not matter to the client."""
        return worst(self._best or self._all)

    def spoil(self, detail: str) -> None:
        """As of any outputs; of those that are leaving nothing more does."""
        super().spoil(detail)
        self._best.clear()

    def report(self, usage: pb.Usage) -> None:
        """Post the best outputs, then the end of the request."""
        events = self._events(usage)
        num_bytes = sum(self._num_bytes(output) for output in self._best)
        self._stream.connection.post_whole(Whole(self._stream.number, events, num_bytes))

    def _end(self, output: LiveOutput, reason: FinishReason) -> None:
        super()._end(output, reason)
        if not self.num_open and all(other.reason in _GOOD_ENDS for other in self._all):
            self._best = self._ranked()[: self._num_returned]

    def _keep(self, output: LiveOutput, news: ipc.Output, count: int) -> None:
        """Keep the first `count` tokens of what a step did, and their scores where they are asked for."""
        self._token_ids[output.index].extend(news.token_ids[:count])
        if self._scored:
            self._scores[output.index].add(news, count)

    def _events(self, usage: pb.Usage) -> Iterator[pb.Event]:
        stream = self._stream.number
        for rank, output in enumerate(self._best):
            for delta in self._deltas(output):
                yield pb.Event(stream=stream, index=rank, delta=delta)
            if self._num_returned > 1:
                assert output.reason is not None, "all have ended"
                ended = pb.OutputFinished(reason=PB_REASON[output.reason])
                yield pb.Event(stream=stream, index=rank, output_finished=ended)
        yield pb.Event(stream=stream, finished=self._finished(usage))

    def _num_bytes(self, output: LiveOutput) -> int:
        """Return about how many bytes the events of an output take."""
        scores, num_tokens = self._scores[output.index], len(self._token_ids[output.index])
        return _TOKEN_BYTES * num_tokens + scores.num_bytes + self._text_bytes(output)

    def _deltas(self, output: LiveOutput) -> Iterator[pb.Delta]:
        """Return tokens, scores and text of an output, so many tokens at once."""
        token_ids, scores = self._token_ids[output.index], self._scores[output.index]
        for start in range(0, len(token_ids), _DELTA_TOKENS):
            end = min(start + _DELTA_TOKENS, len(token_ids))
            text = self._text(output, token_ids[start:end], is_last=end == len(token_ids))
            yield pb.Delta(token_ids=token_ids[start:end], text=text, scores=scores.between(start, end))

    @abstractmethod
    def _text_bytes(self, output: LiveOutput) -> int:
        """Return about how many bytes the text of an output takes."""

    @abstractmethod
    def _ranked(self) -> list[LiveOutput]:
        """Return the outputs, best first."""

    @abstractmethod
    def _text(self, output: LiveOutput, token_ids: Sequence[int], *, is_last: bool) -> str:
        """Return the text that leaves with the next tokens of an output."""


class SampledBest(BestOutputs):
    """`best_of`: the outputs of the highest mean log-probability a token."""

    def __init__(self, stream: Stream, texts: Sequence[TextStream], num_returned: int, *, scored: bool = False) -> None:
        super().__init__(stream, texts, num_returned, scored=scored)
        self._texts = [io.StringIO() for _ in texts]
        self._logprobs = [0.0] * len(texts)  # summed

    def _take_tokens(self, output: LiveOutput, news: ipc.Output) -> bool:
        piece = output.text.push(news.token_ids, ended=news.finish_reason == FinishReason.STOP)
        self.num_tokens += piece.num_tokens
        self._keep(output, news, piece.num_tokens)
        self._texts[output.index].write(piece.text)
        self._logprobs[output.index] += sum(news.logprobs[: piece.num_tokens])
        return piece.stopped

    def _end(self, output: LiveOutput, reason: FinishReason) -> None:
        self._texts[output.index].write(output.text.flush())
        super()._end(output, reason)

    def _ranked(self) -> list[LiveOutput]:
        return sorted(self._all, key=self._mean, reverse=True)  # stable: of equals the first

    def _mean(self, output: LiveOutput) -> float:
        count = len(self._token_ids[output.index])
        return self._logprobs[output.index] / count if count else -math.inf

    def _text_bytes(self, output: LiveOutput) -> int:
        return self._texts[output.index].tell()

    def _text(self, output: LiveOutput, token_ids: Sequence[int], *, is_last: bool) -> str:
        return self._texts[output.index].getvalue() if is_last else ""


class Beams(BestOutputs):
    """Beam search: the core counts while it searches, and sends the best at the end, in order."""

    def take(self, news: ipc.Output) -> bool:
        """Count what was generated; otherwise as any output."""
        self.num_tokens += news.unseen_tokens
        return super().take(news)

    def _take_tokens(self, output: LiveOutput, news: ipc.Output) -> bool:
        self._keep(output, news, len(news.token_ids))
        return False

    def _ranked(self) -> list[LiveOutput]:
        return self._all

    def _text_bytes(self, output: LiveOutput) -> int:
        return _TOKEN_BYTES * len(self._token_ids[output.index])

    def _text(self, output: LiveOutput, token_ids: Sequence[int], *, is_last: bool) -> str:
        text = output.text.push(token_ids, ended=is_last and output.reason is FinishReason.STOP).text
        return text + output.text.flush() if is_last else text
