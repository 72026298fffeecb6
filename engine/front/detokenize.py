"""Token ids to text as they come: no split character and no stop string, nor a part of one, ever leaves.

tokens -> Utf8Stream (whole characters) -> StopFilter (holds back what may begin a stop string) -> client
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_REPLACEMENT = "\ufffd"
_PENDING_LIMIT = 32  # tokens without text before the stream looks for a place to cut
_LONGEST_CHARACTER = 4  # bytes of UTF-8, so at most as many byte tokens


class Utf8Stream:
    """Incremental decoding of one output, special tokens skipped; what it returns joins to the decoding of all tokens.

    Special tokens among `shown` are written as they are named.

    Byte-fallback tokenizers decode a run of bytes as a whole, so a run that turns out invalid after a part of it was
    returned keeps that part.
    """

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._context: list[int] = []  # tokens of the last text returned: what follows decodes after them
        self._pending: list[int] = []
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is incomplete."""
        if token_id in self._shown:
            return self.flush() + (self._tokenizer.id_to_token(token_id) or "")
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


class StopStrings:
    """The stop strings of a request, prepared once for all of its outputs."""

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self.stops = tuple(dict.fromkeys(stops))
        self.borders = tuple(_borders(stop) for stop in self.stops)
        self._firsts = frozenset(stop[0] for stop in self.stops)

    def may_begin_in(self, text: str) -> bool:
        """Return whether a stop string begins with a character of `text`."""
        return not self._firsts.isdisjoint(text)


class StopFilter:
    """Passes text on up to the first stop string to be complete, holding back the longest end that may begin one.

    Each character is looked at about once for each stop string (Knuth, Morris, Pratt 1977), however long those are and
    whatever the text: it decides how long everybody's step takes in the front.
    """

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._matched = [0] * len(strings.stops)  # of each stop string, the characters that the text ends with
        self._held = ""  # as many as the longest of them

    def push(self, text: str, *, too_early: bool = False) -> tuple[str, bool]:
        """Return `(text that may leave, whether a stop string is complete)`; nothing may be pushed after a stop.

        One that would be complete with a text that comes `too_early` is none; one that only begins there may be.
        """
        if not self._held and not self._strings.may_begin_in(text):
            return text, False
        ends = []
        for number, (stop, borders) in enumerate(zip(self._strings.stops, self._strings.borders, strict=True)):
            self._matched[number], end = _advance(stop, borders, self._matched[number], text, goes_on=too_early)
            if end:
                ends.append((end, -len(stop)))
        held = self._held + text
        if ends:
            end, negative = min(ends)  # of those that are complete at once, the one that began first
            cut = len(self._held) + end + negative
            self._held = ""
            return held[:cut], True
        keep = max(self._matched)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> str:
        """Return what was held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held


def _advance(stop: str, borders: Sequence[int], matched: int, text: str, *, goes_on: bool = False) -> tuple[int, int]:
    """Follow `stop` through `text`, given how much of it had matched before.

    Args:
        stop: a stop string.
        borders: see `_borders`.
        matched: how many of its first characters the text before ends with.
        text: what comes then.
        goes_on: it ends nothing where it is complete.

    Returns:
        How many of its first characters the text now ends with, and where in `text` it is complete; 0: nowhere.
    """
    start = 0
    if not matched:
        start = text.find(stop[0])
        if start < 0:
            return 0, 0
    for position in range(start, len(text)):
        character = text[position]
        while matched and stop[matched] != character:
            matched = borders[matched - 1]
        if stop[matched] == character:
            matched += 1
            if matched == len(stop):
                if not goes_on:
                    return 0, position + 1
                matched = borders[-1]  # the next one may have begun in it
    return matched, 0


def _borders(stop: str) -> "array[int]":
    """Return, for each beginning of `stop`, the length of the longest shorter beginning that it ends with."""
    borders = array("I", [0])
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = borders[length - 1]
        length += stop[length] == character
        borders.append(length)
    return borders


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of tokens: `num_tokens` of them belong to the output, `stopped` says that a stop string ended it."""

    text: str
    num_tokens: int
    stopped: bool


class TextStream:
    """The text of one output. A token among `end_tokens` that ends it counts and has no text.

    No stop string ends it before it has `min_tokens` tokens. Of special tokens only those that are `shown` have a text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: StopStrings | None = None,
        end_tokens: frozenset[int] = frozenset(),
        min_tokens: int = 0,
        *,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._characters = Utf8Stream(tokenizer, shown)
        self._filter = StopFilter(stops or StopStrings())
        self._end_tokens = end_tokens
        self._num_early = max(0, min_tokens - 1)  # tokens to come that end nothing
        self._stopped = False

    def push(self, token_ids: Sequence[int], *, ended: bool = False) -> Piece:
        """Take tokens in order, up to the one that completes a stop string.

        Args:
            token_ids: at least one.
            ended: the model ended the output with the last of them.
        """
        if len(token_ids) == 1 and not ended and not self._num_early:  # nearly always: what follows comes to the same
            text, self._stopped = self._filter.push(self._characters.push(token_ids[0]))
            return Piece(text, 1, self._stopped)
        shown = token_ids[:-1] if ended and token_ids[-1] in self._end_tokens else token_ids
        parts = []
        for count, token_id in enumerate(shown, start=1):
            text, self._stopped = self._filter.push(self._characters.push(token_id), too_early=self._num_early > 0)
            self._num_early = max(0, self._num_early - 1)
            parts.append(text)
            if self._stopped:
                return Piece("".join(parts), count, True)
        return Piece("".join(parts), len(token_ids), False)

    def flush(self) -> str:
        """Return the held-back rest at the end of an output; where a stop string ended it there is none."""
        if self._stopped:
            return ""
        text, stopped = self._filter.push(self._characters.flush(), too_early=self._num_early > 0)
        return text if stopped else text + self._filter.flush()
