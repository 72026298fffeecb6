"""An output's text in, content and calls out: the same for any form that a model writes calls in."""

import re
import uuid
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from gateway.api.tools.call import ObjectReader, Reader, Reading
from gateway.api.tools.json_value import SPACE
from gateway.api.tools.named_call import NamedReader
from gateway.api.tools.pieces import Arguments, CallBegun, CallEnded, Content, Piece

MAX_SPACE = 64  # characters of white space that may belong to a marker; a longer run is content

_SLICE = 4096  # characters that are read at once: what is behind a marker is copied

_BEFORE_CALLS = frozenset(SPACE + "[")
_AFTER_CALL = frozenset(SPACE + ",;]}")  # a brace too many is a common slip, and says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """How calls stand in a text."""

    opens: tuple[str, ...]  # markers that calls follow
    close: str = ""  # ends what a marker began; empty: nothing does
    bare: bool = False  # calls may also be the first thing in the output, without a marker
    named: bool = False  # after a marker a function's name may stand before its arguments


def new_call_id() -> str:
    """Return an id for a call."""
    return f"call_{uuid.uuid4().hex[:24]}"


class Parser:
    """Reads one output as it comes.

    What is told does not depend on how the text was cut, and nothing of what marks a call is told as content. It is one
    from the moment when its name is a known function's and its arguments begin; until then it is held back, and where
    nothing comes of it, it is content. A call whose arguments turn out not to be JSON goes on to the closing marker.
    White space between content and a marker belongs to the marker.

        text     looks for a marker ──▶ between  looks for a call ──▶ call     reads it, and tells its arguments
                 ◀── no call follows             ◀── it has ended     broken   tells all up to the closing marker

    Args:
        syntax: of the form that the model writes calls in.
        names: of the functions that it may call.
        only_calls: the output has been kept to calls: what is none is one that was cut off, and is told in no way.
        new_id: makes the id of a call.
    """

    def __init__(
        self,
        syntax: Syntax,
        names: Container[str],
        *,
        only_calls: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.num_calls = 0
        self._only_calls = only_calls
        self._syntax = syntax
        self._names = names
        self._new_id = new_id
        self._markers = (*syntax.opens, syntax.close) if syntax.close else syntax.opens
        self._pattern = re.compile("|".join(map(re.escape, self._markers)))
        self._mode: Callable[[Parser, str, int], tuple[str, int]] = Parser._in_text
        self._at_start = True
        self._held = ""  # of a text: white space, and what may begin a marker
        self._long_space = False  # the run of white space that the text ends with is content
        self._raw: list[str] = []  # since the last marker or call, in case it has to be content; the marker first
        self._group_calls = 0  # since the last marker
        self._reader: Reader | None = None
        self._announced = False
        self._has_content = False
        self._pieces: list[Piece] = []

    def push(self, text: str) -> list[Piece]:
        """Take more of the output; return what is certain by now."""
        for start in range(0, len(text), _SLICE):
            self._feed(text[start : start + _SLICE])
        return self._taken()

    def flush(self) -> list[Piece]:
        """Return what was held back; the output is at its end, whole or cut off."""
        while self._mode is not Parser._in_text and not self._ended():
            rest, at = self._no_call("", 0)
            self._feed(rest[at:])
        if self._mode is Parser._in_text and not (self.num_calls and self._held.isspace()):
            self._content(self._held)
        self._held = ""
        return self._taken()

    def _feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            text, at = self._mode(self, text, at)

    def _taken(self) -> list[Piece]:
        """Return what has become certain, texts in a row as one."""
        taken: list[Piece] = []
        texts: list[str] = []
        for piece in self._pieces:
            if isinstance(piece, Content):
                texts.append(piece.text)
                continue
            if texts:
                taken.append(Content("".join(texts)))
                texts = []
            taken.append(piece)
        if texts:
            taken.append(Content("".join(texts)))
        self._pieces = []
        return taken

    def _ended(self) -> bool:
        """End what the output's end may end; return whether nothing is left that has to be content."""
        if self._mode is Parser._broken:
            self._tell_arguments(self._held)
            self._end_call()
        elif self._mode is Parser._in_call and self._announced:
            self._end_call()
        elif self._mode is Parser._in_call or not self._group_calls:
            return False
        return True

    # ------------------------------------------------------------ modes: each reads on, and returns where it stopped

    def _in_text(self, text: str, at: int) -> tuple[str, int]:
        window, self._held = self._held + text[at:], ""
        if self._at_start:
            begin = len(window) - len(window.lstrip())
            if begin == len(window) and begin <= MAX_SPACE:
                self._held = window
                return "", 0
            self._at_start = False
            if self._syntax.bare and begin <= MAX_SPACE and window[begin] in "{[":
                return self._open(window, "", begin)
        found = self._pattern.search(window)
        if found is None:
            told, self._held = self._certain(window)
            self._content(told)
            return "", 0
        told, space = self._trimmed(window[: found.start()])
        self._long_space = False
        self._content(told)
        if found[0] != self._syntax.close:
            return self._open(window, space + found[0], found.end())
        if not self.num_calls:  # somebody speaks of the marker
            self._content(space + found[0])
        return window, found.end()

    def _open(self, window: str, marker: str, at: int) -> tuple[str, int]:
        self._raw = [marker or window[:at]]
        self._group_calls = 0
        self._mode = Parser._between
        return window, at

    def _between(self, text: str, at: int) -> tuple[str, int]:
        filler = _AFTER_CALL if self._group_calls else _BEFORE_CALLS
        start = at
        while at < len(text) and text[at] in filler:
            at += 1
        self._raw.append(text[start:at])
        if at == len(text):
            return text, at
        if text[at] == "{":
            return self._begin(ObjectReader(self._names), text, at)
        if self._syntax.named and not self._group_calls and (text[at].isalnum() or text[at] in "_-"):
            return self._begin(NamedReader(self._names), text, at)
        if not self._group_calls:
            return self._no_call(text, at)
        self._mode = Parser._in_text
        return text, at

    def _begin(self, reader: Reader, text: str, at: int) -> tuple[str, int]:
        self._reader, self._announced = reader, False
        self._mode = Parser._in_call
        return text, at

    def _in_call(self, text: str, at: int) -> tuple[str, int]:
        reader = self._reader
        assert reader is not None, "the mode begins with one"
        end = reader.read(text, at)
        if reader.begun:
            self._tell(reader)
        else:
            self._raw.append(text[at:end])
        if reader.state is Reading.FAILED:
            return self._no_call(text, end)
        if reader.state is Reading.DONE:
            self._end_call()
        elif reader.state is Reading.BROKEN:
            self._mode = Parser._broken
        return text, end

    def _broken(self, text: str, at: int) -> tuple[str, int]:
        window, self._held = self._held + text[at:], ""
        found = self._pattern.search(window)
        if found is None:
            told, self._held = self._certain(window)
            self._tell_arguments(told)
            return "", 0
        self._tell_arguments(self._trimmed(window[: found.start()])[0])
        self._end_call()
        if found[0] != self._syntax.close:
            return self._open(window, found[0], found.end())
        self._mode = Parser._in_text
        return window, found.end()

    def _no_call(self, text: str, at: int) -> tuple[str, int]:
        """Make content of a marker that no call follows, and read what follows it again: there may be another one."""
        marker, *rest = self._raw
        self._raw = []
        self._mode = Parser._in_text
        self._content(marker)
        return "".join(rest) + text[at:], 0

    # ------------------------------------------------------------ what is told

    def _tell(self, reader: Reader) -> None:
        if not self._announced:
            self._announced = True
            self._raw = []
            self._pieces.append(CallBegun(self.num_calls, self._new_id(), reader.name))
            self.num_calls += 1
        self._tell_arguments(reader.take())

    def _tell_arguments(self, text: str) -> None:
        if text:
            self._pieces.append(Arguments(self.num_calls - 1, text))

    def _end_call(self) -> None:
        self._pieces.append(CallEnded(self.num_calls - 1))
        self._reader = None
        self._raw = [""]
        self._group_calls += 1
        self._held = ""
        self._long_space = False
        self._mode = Parser._between

    def _content(self, text: str) -> None:
        if self.num_calls and not self._has_content:
            text = text.lstrip()
        if not text or self._only_calls:
            return
        self._has_content = True
        self._pieces.append(Content(text))

    def _certain(self, window: str) -> tuple[str, str]:
        """Split what no marker stands in: into what can be told, and what a marker may follow or complete."""
        keep = _overlap(window, self._markers)
        cut = len(window) - keep
        told, space = self._trimmed(window[:cut])
        return told, space + window[cut:]

    def _trimmed(self, text: str) -> tuple[str, str]:
        """Split white space off the end of `text`, unless the run is too long, or the end of one that is."""
        told = text.rstrip()
        if told or not self._long_space:
            self._long_space = len(text) - len(told) > MAX_SPACE
        return (text, "") if self._long_space else (told, text[len(told) :])


def _overlap(text: str, markers: Sequence[str]) -> int:
    """Return how many of the last characters of `text` may begin a marker."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
