"""One call that comes in pieces: an object with a function's name and its arguments."""

from collections.abc import Callable, Container
from enum import Enum, auto
from typing import Protocol

import msgspec

from gateway.api.tools.json_value import SPACE, JsonValue

ARGUMENTS = ("arguments", "parameters")


class Reading(Enum):
    """How far a call has been read."""

    ON = auto()
    DONE = auto()
    FAILED = auto()  # it is no call, and nothing of it has been told
    BROKEN = auto()  # its arguments, which have been told as they came, turn out not to be JSON


class Reader(Protocol):
    """Reads one call through pieces of text."""

    name: str  # of the function, once `begun`
    begun: bool  # it is a call, however it goes on
    state: Reading

    def read(self, text: str, at: int) -> int:
        """Read on from `at`; return where the call ended or failed, or the length of `text`."""
        ...

    def take(self) -> str:
        """Return the arguments that have come since the last time."""
        ...


class ObjectReader:
    """Reads `{"name": "f", "arguments": {...}}`; `parameters` is another word for the arguments.

    Arguments are told as they come, where the name has come before them. Other members are passed over. Arguments
    written as a text that holds an object are taken for that object, and none, or null, for an empty one.
    """

    def __init__(self, names: Container[str]) -> None:
        self.name = ""
        self.begun = False
        self.state = Reading.ON
        self._names = names
        self._key = ""
        self._value = JsonValue()
        self._raw: list[str] = []  # of the key or the value that is being read
        self._known: str | None = None  # arguments that came before the name
        self._fresh: list[str] = []
        self._telling = False  # the value that is being read is the call's arguments
        self._step: Callable[[ObjectReader, str, int], int] = ObjectReader._open

    def read(self, text: str, at: int) -> int:
        """Read on from `at`; return where the call ended or failed, or the length of `text`."""
        while at < len(text) and self.state is Reading.ON:
            at = self._step(self, text, at)
        return at

    def take(self) -> str:
        """Return the arguments that have come since the last time."""
        fresh = "".join(self._fresh)
        self._fresh.clear()
        return fresh

    def _open(self, text: str, at: int) -> int:
        assert text[at] == "{", "the parser looks before it reads"
        self._step = ObjectReader._before_key
        return at + 1

    def _before_key(self, text: str, at: int) -> int:
        if text[at] in SPACE:
            return at + 1
        if text[at] != '"':
            return self._fail(at)
        self._begin_value(ObjectReader._in_key)
        return at

    def _in_key(self, text: str, at: int) -> int:
        end = self._read_value(text, at)
        if self._value.failed:
            return self._fail(end)
        if self._value.done:
            self._key = str(_decoded("".join(self._raw)))
            self._step = ObjectReader._colon
        return end

    def _colon(self, text: str, at: int) -> int:
        if text[at] == ":":
            self._step = ObjectReader._before_value
        elif text[at] not in SPACE:
            return self._fail(at)
        return at + 1

    def _before_value(self, text: str, at: int) -> int:
        if text[at] in SPACE:
            return at + 1
        self._telling = bool(self.name) and not self.begun and self._key in ARGUMENTS and text[at] == "{"
        self.begun = self.begun or self._telling
        self._begin_value(ObjectReader._in_value)
        return at

    def _in_value(self, text: str, at: int) -> int:
        end = self._read_value(text, at)
        if self._telling:
            self._fresh.append(text[at:end])
            self._raw.clear()
        if self._value.failed and self._telling:
            self.state = Reading.BROKEN
        elif self._value.failed:
            return self._fail(end)
        elif self._value.done:
            self._telling = False
            self._step = ObjectReader._after_value
            if not self.begun and not self._take_value("".join(self._raw)):
                return self._fail(end)
        return end

    def _after_value(self, text: str, at: int) -> int:
        if text[at] == ",":
            self._step = ObjectReader._before_key
        elif text[at] == "}":
            if not self.name:
                return self._fail(at)
            if not self.begun:
                self._begin("{}")
            self.state = Reading.DONE
        elif text[at] not in SPACE:
            return self._fail(at)
        return at + 1

    def _begin_value(self, step: "Callable[[ObjectReader, str, int], int]") -> None:
        self._value, self._step = JsonValue(), step
        self._raw.clear()

    def _read_value(self, text: str, at: int) -> int:
        end = self._value.read(text, at)
        self._raw.append(text[at:end])
        return end

    def _take_value(self, raw: str) -> bool:
        """Take a name, or arguments that could not be told as they came; return whether it may still be a call."""
        if self._key == "name":
            name = _decoded(raw)
            if self.name or not isinstance(name, str) or name not in self._names:
                return False
            self.name = name
        elif self._key in ARGUMENTS:
            self._known = _object_in(raw)
            if self._known is None:
                return False
        if self.name and self._known is not None:
            self._begin(self._known)
        return True

    def _begin(self, arguments: str) -> None:
        self.begun = True
        self._fresh.append(arguments)

    def _fail(self, at: int) -> int:
        # What has begun has its arguments: the rest of the object does not matter.
        self.state = Reading.DONE if self.begun else Reading.FAILED
        return at


def _decoded(raw: str) -> object:
    """Return the value that `raw` is the JSON of; None also where it is none after all."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def _object_in(raw: str) -> str | None:
    """Return the JSON object that `raw` is or holds, None where there is none."""
    value = _decoded(raw)
    if value is None and raw == "null":
        return "{}"
    if isinstance(value, str):
        raw = value
        value = _decoded(raw)
    return raw if isinstance(value, dict) else None
