"""The JSON of OpenAI's chat completions, and what both completion surfaces share of a response's form. Pure.

A chunk of a stream is put together from encoded pieces: what all chunks of a response repeat is encoded once.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from engine.protocol import pb
from gateway.api import sse
from gateway.api.logprobs import chat_logprobs
from gateway.api.reading import Reading, Told
from gateway.api.tools.pieces import Arguments, CallBegun, CallEnded, Content, Piece, whole
from gateway.api.tools.plan import ToolPlan
from gateway.workers.generation import Delta, Finished, TokenScore
from gateway.workers.vocabulary import Vocabulary

REASONS: dict[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}
PAD_BYTES = 64  # what a padded chunk says is made as long as a multiple of it

encode = msgspec.json.Encoder().encode


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every chunk of a response repeats, and how a stream is told."""

    id: str
    created: int
    model: str
    fingerprint: str
    tier: str = ""  # of service, where the request names one
    include_usage: bool = False  # each chunk says `usage: null` until the last, which has it
    padded: bool = False  # each chunk has a random `obfuscation`, so that its size says less about its text
    count: int = 1  # choices of each prompt

    def fields(self, kind: str) -> dict[str, Any]:
        """Return the fields of an object of that kind."""
        fields = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }
        return fields | {"service_tier": self.tier} if self.tier else fields


class Output(msgspec.Struct, kw_only=True):
    """One choice, whole, of a response that isn't streamed."""

    text: str
    reason: int
    tokens: tuple[int, ...] = ()  # where log-probabilities are asked for, as in `Delta`
    scores: tuple[TokenScore, ...] = ()


class Shape(Protocol):
    """How one surface writes a response. Its choices are numbered over all prompts, one prompt after the other."""

    def opening(self, number: int) -> bytes:
        """Return what opens the choices of prompt `number`, which a worker has taken, or has now scored."""
        ...

    def scored(self, number: int, scores: Sequence[TokenScore]) -> None:
        """Take the scores of prompt `number`, of its tokens from the second on."""
        ...

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the chunks of more of a choice; none where nothing can be told yet."""
        ...

    def closing(self, index: int, text: str, reason: int) -> bytes:
        """Return the last chunks of a choice, with the text that was held back."""
        ...

    def usage(self, ends: Sequence[Finished]) -> bytes:
        """Return the last chunk, which has usage and no choice, if the client asked for it."""
        ...

    def whole(self, outputs: Sequence[Output], ends: Sequence[Finished]) -> dict[str, Any]:
        """Return the response that isn't streamed: an output a choice, an end a prompt."""
        ...


class Chunks:
    """Frames of a stream, with one choice each."""

    def __init__(self, head: Head, kind: str) -> None:
        self._head = head
        self._fields = head.fields(kind) | ({"usage": None} if head.include_usage else {})
        self._lead = b"data: " + encode(self._fields)[:-1] + b',"choices":[{"index":'
        self._end = b"}]}\n\n"

    def frame(self, index: int, said: bytes, reason: str = "", scores: bytes = b"null") -> bytes:
        """Return a chunk.

        Args:
            index: of the choice.
            said: the member of the choice that says something, encoded: `"delta":{...}` or `"text":"..."`.
            reason: why the choice has ended; empty: it has not.
            scores: log-probabilities, encoded.
        """
        ended = b'"' + reason.encode() + b'"' if reason else b"null"
        end = b"".join((b"}],", _padding(said), b"}\n\n")) if self._head.padded else self._end
        return b"".join(
            (self._lead, str(index).encode(), b",", said, b',"logprobs":', scores, b',"finish_reason":', ended, end)
        )

    def usage(self, ends: Sequence[Finished]) -> bytes:
        """Return the chunk of usage, if the client asked for it."""
        if not self._head.include_usage:
            return b""
        return sse.event(self._fields | {"choices": [], "usage": usage_of(ends)})


class ChatShape:
    """`chat.completion` and its chunks.

    Args:
        head: of the response.
        vocabulary: of the model, for log-probabilities.
        readings: makes the reading of each choice; None: its deltas are its text.
        plan: how functions may be called; None: they may not.
    """

    def __init__(
        self,
        head: Head,
        vocabulary: Vocabulary,
        readings: Callable[[], Reading] | None = None,
        plan: ToolPlan | None = None,
    ) -> None:
        self._head = head
        self._chunks = Chunks(head, "chat.completion.chunk")
        self._vocabulary = vocabulary
        self._readings = readings
        self._open: dict[int, Reading] = {}
        self._may_call = plan is not None and plan.parser is not None
        self._is_named = plan is not None and plan.named

    def opening(self, number: int) -> bytes:
        """Return a chunk with the role for each choice; where functions may be called there may be no content."""
        content = b"null" if self._may_call else b'""'
        said = b'"delta":{"role":"assistant","content":' + content + b',"refusal":null}'
        first = number * self._head.count
        return b"".join([self._chunks.frame(first + index, said) for index in range(self._head.count)])

    def scored(self, number: int, scores: Sequence[TokenScore]) -> None:
        """Raise: this surface asks for no scores of a prompt."""
        raise AssertionError("a chat's prompt was scored")

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the chunks of more of a choice."""
        if self._readings is None:
            return self._chunks.frame(index, _content(delta.text))
        return self._told(index, self._reading(index).push(delta))

    def closing(self, index: int, text: str, reason: int) -> bytes:
        """Return the chunks with the rest of the text, and the one with the finish reason."""
        if self._readings is None:
            frames = self._chunks.frame(index, _content(text)) if text else b""
            return frames + self._chunks.frame(index, b'"delta":{}', REASONS[reason])
        reading = self._reading(index)
        frames = self._told(index, reading.finish(text, reason))
        return frames + self._chunks.frame(index, b'"delta":{}', self._reason(reason, reading))

    def usage(self, ends: Sequence[Finished]) -> bytes:
        """Return the chunk of usage, if the client asked for it."""
        return self._chunks.usage(ends)

    def whole(self, outputs: Sequence[Output], ends: Sequence[Finished]) -> dict[str, Any]:
        """Return the whole response."""
        choices = [
            {"index": index} | (self._plain(output) if self._readings is None else self._read(output, self._readings()))
            for index, output in enumerate(outputs)
        ]
        return self._head.fields("chat.completion") | {"choices": choices, "usage": usage_of(ends)}

    def _plain(self, output: Output) -> dict[str, Any]:
        message = _message(output.text)
        return {"message": message, "logprobs": None, "finish_reason": REASONS[output.reason]}

    def _read(self, output: Output, reading: Reading) -> dict[str, Any]:
        first = reading.push(Delta(output.text, tokens=output.tokens, scores=output.scores))
        rest = reading.finish("", output.reason)
        told = whole([*first.pieces, *rest.pieces])
        message = _message(told.content)
        if told.calls:
            message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in told.calls]
        scores = chat_logprobs([*first.scored, *rest.scored], self._vocabulary) if reading.has_scores else None
        return {"message": message, "logprobs": scores, "finish_reason": self._reason(output.reason, reading)}

    def _told(self, index: int, told: Told) -> bytes:
        """Return the chunks of what can be told; scores are in the first of them."""
        saids = [said for piece in told.pieces if (said := _said(piece))]
        if not told.scored:
            return b"".join([self._chunks.frame(index, said) for said in saids])
        scores = encode(chat_logprobs(told.scored, self._vocabulary))
        first, *others = saids or [_content("")]
        frames = [self._chunks.frame(index, said) for said in others]
        return b"".join([self._chunks.frame(index, first, scores=scores), *frames])

    def _reason(self, reason: int, reading: Reading) -> str:
        # As at OpenAI, a call of the function that the request names is no reason of its own.
        called = reading.calls and not self._is_named
        return "tool_calls" if called and reason == pb.FINISH_REASON_STOP else REASONS[reason]

    def _reading(self, index: int) -> Reading:
        reading = self._open.get(index)
        if reading is None:
            assert self._readings is not None
            reading = self._open[index] = self._readings()
        return reading


def usage_of(ends: Sequence[Finished]) -> dict[str, Any]:
    """Return OpenAI's usage over all prompts, each counted once, and all that was generated for them."""
    prompt = sum(end.prompt_tokens for end in ends)
    completion = sum(end.completion_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(end.cached_tokens for end in ends)},
    }


def _content(text: str) -> bytes:
    return b'"delta":{"content":' + encode(text) + b"}"


def _said(piece: Piece) -> bytes:
    if isinstance(piece, Content):
        return _content(piece.text)
    if isinstance(piece, CallEnded):
        return b""
    if isinstance(piece, CallBegun):
        call = {"index": piece.number} | _call(piece.id, piece.name, "")
    else:
        assert isinstance(piece, Arguments)
        call = {"index": piece.number, "function": {"arguments": piece.text}}
    return b'"delta":' + encode({"tool_calls": [call]})


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _message(content: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "refusal": None, "annotations": []}


def _padding(said: bytes) -> bytes:
    """Return the member that pads what a chunk says."""
    return b'"obfuscation":"' + secrets.token_hex(PAD_BYTES)[: -len(said) % PAD_BYTES].encode() + b'"'
