"""Outputs of which the best come back, best first, when all have ended: `best_of` and beam search.

Until then they are kept here, token ids as four bytes each and text as one buffer an output, so that a request holds at
most its outputs times `max_tokens` of both. What is generated counts as it comes, dropped outputs included.
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
from engine.front.outputs import LiveOutput, Outputs, worst
from engine.protocol import pb
from engine.request import FinishReason

_TOKEN_BYTES = 3  # of a token id in a message, about
_DELTA_TOKENS = 1024  # of a beam, decoded at once
_GOOD_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


class BestOutputs(Outputs, ABC):
    """Outputs that leave at the end; of a request that was cancelled or failed none does."""

    def __init__(self, stream: Stream, texts: Sequence[TextStream], num_returned: int) -> None:
        super().__init__(stream, texts)
        self._num_returned = num_returned
        self._token_ids = [array("I") for _ in texts]
        self._best: list[LiveOutput] = []  # once all have ended

    @property
    def reason(self) -> FinishReason:
        """How the request ends, once all have ended: what was dropped does not matter to the client."""
        return worst(self._best or self._all)

    def report(self, usage: pb.Usage) -> None:
        """Post the best outputs, then the end of the request."""
        events = self._events(self._finished(usage))
        num_bytes = sum(self._num_bytes(output) for output in self._best)
        self._stream.connection.post_whole(Whole(self._stream.number, events, num_bytes))

    def _end(self, output: LiveOutput, reason: FinishReason) -> None:
        super()._end(output, reason)
        if not self.num_open and all(other.reason in _GOOD_ENDS for other in self._all):
            self._best = self._ranked()[: self._num_returned]

    def _events(self, finished: pb.Finished) -> Iterator[pb.Event]:
        stream = self._stream.number
        for rank, output in enumerate(self._best):
            for delta in self._deltas(output):
                yield pb.Event(stream=stream, index=rank, delta=delta)
            if self._num_returned > 1:
                assert output.reason is not None, "all have ended"
                ended = pb.OutputFinished(reason=PB_REASON[output.reason])
                yield pb.Event(stream=stream, index=rank, output_finished=ended)
        yield pb.Event(stream=stream, finished=finished)

    @abstractmethod
    def _num_bytes(self, output: LiveOutput) -> int:
        """Return about how many bytes the events of an output take."""

    @abstractmethod
    def _ranked(self) -> list[LiveOutput]:
        """Return the outputs, best first."""

    @abstractmethod
    def _deltas(self, output: LiveOutput) -> Iterator[pb.Delta]:
        """Return tokens and text of an output."""


class SampledBest(BestOutputs):
    """`best_of`: the outputs of the highest mean log-probability a token."""

    def __init__(self, stream: Stream, texts: Sequence[TextStream], num_returned: int) -> None:
        super().__init__(stream, texts, num_returned)
        self._texts = [io.StringIO() for _ in texts]
        self._logprobs = [0.0] * len(texts)  # summed

    def _take_tokens(self, output: LiveOutput, news: ipc.Output) -> bool:
        piece = output.text.push(news.token_ids, ended=news.finish_reason == FinishReason.STOP)
        self.num_tokens += piece.num_tokens
        self._token_ids[output.index].extend(news.token_ids[: piece.num_tokens])
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

    def _num_bytes(self, output: LiveOutput) -> int:
        return _TOKEN_BYTES * len(self._token_ids[output.index]) + self._texts[output.index].tell()

    def _deltas(self, output: LiveOutput) -> Iterator[pb.Delta]:
        yield pb.Delta(token_ids=self._token_ids[output.index], text=self._texts[output.index].getvalue())


class Beams(BestOutputs):
    """Beam search: the core counts while it searches, and sends the best at the end, in order."""

    def take(self, news: ipc.Output) -> bool:
        """Count what was generated; otherwise as any output."""
        self.num_tokens += news.unseen_tokens
        return super().take(news)

    def _take_tokens(self, output: LiveOutput, news: ipc.Output) -> bool:
        self._token_ids[output.index].extend(news.token_ids)
        return False

    def _ranked(self) -> list[LiveOutput]:
        return self._all

    def _num_bytes(self, output: LiveOutput) -> int:
        return 2 * _TOKEN_BYTES * len(self._token_ids[output.index])

    def _deltas(self, output: LiveOutput) -> Iterator[pb.Delta]:
        token_ids = self._token_ids[output.index]
        for start in range(0, len(token_ids), _DELTA_TOKENS):
            part = token_ids[start : start + _DELTA_TOKENS]
            last = start + len(part) == len(token_ids)
            text = output.text.push(part, ended=last and output.reason is FinishReason.STOP).text
            yield pb.Delta(token_ids=part, text=text + output.text.flush() if last else text)
