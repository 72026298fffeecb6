"""The JSON of OpenAI's completions, streamed or not. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gateway.api.logprobs import Scored, TextLogprobs
from gateway.api.reading import Reading, Told
from gateway.api.shapes import REASONS, Chunks, Head, Output, encode, usage_of
from gateway.api.tools.pieces import Content
from gateway.workers.generation import Delta, Finished, TokenScore
from gateway.workers.vocabulary import Vocabulary


class Prompt(msgspec.Struct, frozen=True):
    """A prompt, where an answer says something of it."""

    text: str
    tokens: Sequence[int]


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer says of its prompts."""

    prompts: Sequence[Prompt]
    shown: bool = False  # their texts come before the outputs
    alone: bool = False  # and instead of them


class CompletionShape:
    """`text_completion`.

    Args:
        head: of the response.
        vocabulary: of the model, for log-probabilities.
        readings: makes the reading of each choice, which has scores; None: none are asked for.
        echo: what is said of the prompts; with scores it is there, shown or not, because offsets count from them.
    """

    def __init__(
        self,
        head: Head,
        vocabulary: Vocabulary,
        readings: Callable[[], Reading] | None = None,
        echo: Echo | None = None,
    ) -> None:
        self._head = head
        self._chunks = Chunks(head, "text_completion")
        self._vocabulary = vocabulary
        self._readings = readings
        self._echo = echo
        self._shown = echo.prompts if echo is not None and echo.shown else ()
        self._alone = echo is not None and echo.alone
        self._of_prompts: dict[int, dict[str, Any]] = {}  # log-probabilities, where they are echoed and asked for
        self._open: dict[int, tuple[Reading, TextLogprobs]] = {}
        if readings is not None:
            for number, prompt in enumerate(self._shown):
                if len(prompt.tokens) == 1:  # nothing precedes its only token: no scores will come
                    self.scored(number, ())

    def opening(self, number: int) -> bytes:
        """Return the echo of the prompt, once its scores are there, if some are to come."""
        if not self._shown or (self._readings is not None and number not in self._of_prompts):
            return b""
        said = b'"text":' + encode(self._shown[number].text)
        scores = b"null" if self._readings is None else encode(self._of_prompts[number])
        first = number * self._head.count
        return b"".join([self._chunks.frame(first + index, said, scores=scores) for index in range(self._head.count)])

    def scored(self, number: int, scores: Sequence[TokenScore]) -> None:
        """Take the scores of a prompt's tokens from the second on."""
        tokens = self._shown[number].tokens
        scored = [Scored(token, score) for token, score in zip(tokens, (None, *scores), strict=True)]
        self._of_prompts[number] = self._logprobs(number).prompt(scored)

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the chunks of more of a choice."""
        if self._alone:
            return b""
        if self._readings is None:
            return self._chunks.frame(index, b'"text":' + encode(delta.text))
        reading, logprobs = self._reading(index)
        return self._told(index, reading.push(delta), logprobs)

    def closing(self, index: int, text: str, reason: int) -> bytes:
        """Return the chunks with the rest of the text, and the one with the finish reason."""
        frames = b""
        if self._readings is not None and not self._alone:
            reading, logprobs = self._reading(index)
            frames = self._told(index, reading.finish(text, reason), logprobs)
        elif text and not self._alone:
            frames = self._chunks.frame(index, b'"text":' + encode(text))
        return frames + self._chunks.frame(index, b'"text":""', "length" if self._alone else REASONS[reason])

    def usage(self, ends: Sequence[Finished]) -> bytes:
        """Return the chunk of usage, if the client asked for it."""
        return self._chunks.usage(ends)

    def whole(self, outputs: Sequence[Output], ends: Sequence[Finished]) -> dict[str, Any]:
        """Return the whole response."""
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        return self._head.fields("text_completion") | {"choices": choices, "usage": usage_of(ends)}

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        number = index // self._head.count
        scores: dict[str, Any] | None = None
        if self._readings is not None:
            scores = self._of_prompts[number] if self._shown else None
            if not self._alone:
                scores = _joined(scores, self._of_output(number, output, self._readings()))
        echoed = self._shown[number].text if self._shown else ""
        return {
            "index": index,
            "text": echoed if self._alone else echoed + output.text,
            "logprobs": scores,
            "finish_reason": "length" if self._alone else REASONS[output.reason],
        }

    def _of_output(self, number: int, output: Output, reading: Reading) -> dict[str, Any]:
        first = reading.push(Delta(output.text, tokens=output.tokens, scores=output.scores))
        rest = reading.finish("", output.reason)
        return self._logprobs(number).output([*first.scored, *rest.scored])

    def _told(self, index: int, told: Told, logprobs: TextLogprobs) -> bytes:
        text = "".join([piece.text for piece in told.pieces if isinstance(piece, Content)])
        if not text and not told.scored:
            return b""
        scores = encode(logprobs.output(told.scored)) if told.scored else b"null"
        return self._chunks.frame(index, b'"text":' + encode(text), scores=scores)

    def _reading(self, index: int) -> tuple[Reading, TextLogprobs]:
        known = self._open.get(index)
        if known is None:
            assert self._readings is not None
            known = self._open[index] = (self._readings(), self._logprobs(index // self._head.count))
        return known

    def _logprobs(self, number: int) -> TextLogprobs:
        assert self._echo is not None
        return TextLogprobs(self._vocabulary, self._echo.prompts[number].text)


def _joined(prompt: dict[str, Any] | None, output: dict[str, Any]) -> dict[str, Any]:
    return output if prompt is None else {name: values + output[name] for name, values in prompt.items()}
