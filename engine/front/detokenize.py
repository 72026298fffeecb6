"""Token ids to text as they come: no split character and no stop string, nor a part of one, ever leaves.

tokens -> Utf8Stream (whole characters) -> StopFilter (holds back what may begin a stop string) -> client
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_REPLACEMENT = "\ufffd"
_PENDING_LIMIT = 32  # tokens without text before the stream looks for a place to cut
_LONGEST_CHARACTER = 4  # bytes of UTF-8, so at most as many byte tokens


class Utf8Stream:
    """Incremental decoding of one output, special tokens skipped; what it returns joins to the decoding of all tokens.

    Byte-fallback tokenizers decode a run of bytes as a whole, so a run that turns out invalid after a part of it was
    returned keeps that part.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # tokens of the last text returned: what follows decodes after them
        self._pending: list[int] = []
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is incomplete."""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception as error:  # the binding raises no class of its own
            if "prefix" not in str(error).lower():
                raise
            return self._restart(len(self._pending))
        if text is not None:
            self._context, self._pending = self._pending, []
            return text
        return self._cut() if len(self._pending) >= _PENDING_LIMIT else ""

    def flush(self) -> str:
        """Return what an incomplete character decodes to; the stream is at its end."""
        return self._restart(len(self._pending)) if self._pending else ""

    def _cut(self) -> str:
        # Bytes that never form a character, or nothing but special tokens: without a cut each step would decode them
        # all again. The cut leaves the tokens of a character that may still become whole.
        whole = self._decode(self._context + self._pending)
        if whole == self._decode(self._context):
            return self._restart(len(self._pending))
        for kept in range(1, _LONGEST_CHARACTER):
            head, tail = self._pending[:-kept], self._pending[-kept:]
            if self._decode(self._context + head) + self._decode(tail) == whole:
                return self._restart(len(head))
        return ""

    def _restart(self, count: int) -> str:
        """Return the text of the first `count` pending tokens and begin a new stream after them."""
        head, tail = self._pending[:count], self._pending[count:]
        before, after = self._decode(self._context), self._decode(self._context + head)
        text = after[len(before) :] if after.startswith(before) else self._decode(head)
        if text:
            # A stream that begins after half a character would return its context once more.
            self._context = [] if text.endswith(_REPLACEMENT) else head
        self._pending = []
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=True)
        return text + "".join([self.push(token_id) for token_id in tail])

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)


class StopFilter:
    """Passes text on up to the first stop string, holding back the longest end that may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Return `(text that may leave, whether a stop string is complete)`; nothing may be pushed after a stop."""
        if not self._stops:
            return text, False
        held = self._held + text
        found = [start for start in (held.find(stop) for stop in self._stops) if start >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> str:
        """Return what was held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of tokens: `num_tokens` of them belong to the output, `stopped` says that a stop string ended it."""

    text: str
    num_tokens: int
    stopped: bool


class TextStream:
    """The text of one output."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._characters = Utf8Stream(tokenizer)
        self._filter = StopFilter(stops)

    def push(self, token_ids: Sequence[int]) -> Piece:
        """Take tokens in order, up to the one that completes a stop string."""
        parts = []
        for count, token_id in enumerate(token_ids, start=1):
            text, stopped = self._filter.push(self._characters.push(token_id))
            parts.append(text)
            if stopped:
                return Piece("".join(parts), count, True)
        return Piece("".join(parts), len(token_ids), False)

    def flush(self) -> str:
        """Return the held-back rest at the end of an output that no stop string ended."""
        text, stopped = self._filter.push(self._characters.flush())
        return text if stopped else text + self._filter.flush()
