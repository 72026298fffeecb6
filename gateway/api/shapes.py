"""The JSON of OpenAI's two completion surfaces. Pure."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from engine.protocol import pb
from gateway.workers.generation import Finished

REASONS: dict[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every chunk of a response repeats."""

    id: str
    created: int
    model: str
    fingerprint: str


class Shape(Protocol):
    """How one surface writes a response."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the chunk that opens a choice, if the surface has one."""
        ...

    def delta(self, index: int, text: str) -> dict[str, Any]:
        """Return a chunk of text."""
        ...

    def closing(self, index: int, reason: int) -> dict[str, Any]:
        """Return the chunk that ends a choice."""
        ...

    def usage(self, ends: Sequence[Finished]) -> dict[str, Any] | None:
        """Return the last chunk, which has usage and no choice, if the client asked for it."""
        ...

    def whole(self, texts: Sequence[str], reasons: Sequence[int], ends: Sequence[Finished]) -> dict[str, Any]:
        """Return the response that isn't streamed: a text and a reason a choice, an end a prompt."""
        ...


class ChatShape:
    """`chat.completion` and its chunks. With `include_usage` each chunk says `usage: null` until the last."""

    def __init__(self, head: Head, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._head = _base(head, "chat.completion.chunk", include_usage)
        self._whole = _base(head, "chat.completion", False)

    def opening(self, index: int) -> dict[str, Any]:
        """Return the chunk with the role."""
        return self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def delta(self, index: int, text: str) -> dict[str, Any]:
        """Return a chunk of text."""
        return self._chunk(index, {"content": text}, None)

    def closing(self, index: int, reason: int) -> dict[str, Any]:
        """Return the chunk with the finish reason."""
        return self._chunk(index, {}, REASONS[reason])

    def usage(self, ends: Sequence[Finished]) -> dict[str, Any] | None:
        """Return the chunk of usage, if the client asked for it."""
        return self._head | {"choices": [], "usage": usage_of(ends)} if self._include_usage else None

    def whole(self, texts: Sequence[str], reasons: Sequence[int], ends: Sequence[Finished]) -> dict[str, Any]:
        """Return the whole response."""
        choices: list[dict[str, Any]] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": REASONS[reason],
            }
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        return self._whole | {"choices": choices, "usage": usage_of(ends)}

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._head | {"choices": [choice]}


class CompletionShape:
    """`text_completion`, streamed or not."""

    def __init__(self, head: Head, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._head = _base(head, "text_completion", include_usage)

    def opening(self, index: int) -> None:
        """Return nothing: this surface has no opening chunk."""

    def delta(self, index: int, text: str) -> dict[str, Any]:
        """Return a chunk of text."""
        return self._head | {"choices": [_text_choice(index, text, None)]}

    def closing(self, index: int, reason: int) -> dict[str, Any]:
        """Return the chunk with the finish reason."""
        return self._head | {"choices": [_text_choice(index, "", REASONS[reason])]}

    def usage(self, ends: Sequence[Finished]) -> dict[str, Any] | None:
        """Return the chunk of usage, if the client asked for it."""
        return self._head | {"choices": [], "usage": usage_of(ends)} if self._include_usage else None

    def whole(self, texts: Sequence[str], reasons: Sequence[int], ends: Sequence[Finished]) -> dict[str, Any]:
        """Return the whole response."""
        choices = [
            _text_choice(index, text, REASONS[reason])
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        return self._head | {"choices": choices, "usage": usage_of(ends)}


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


def _base(head: Head, kind: str, include_usage: bool) -> dict[str, Any]:
    base = {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }
    return base | {"usage": None} if include_usage else base


def _text_choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
