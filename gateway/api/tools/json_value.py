"""One JSON value that comes in pieces: where it ends, or where it turns out to be none."""

import re
from collections.abc import Callable

SPACE = " \t\n\r"

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"[-+.0-9eE]*")  # whether they make a number is for whoever decodes the value
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonValue:
    """Follows one value through pieces of text. Keeps none of it, and nests without recursion.

    Numbers are followed loosely, everything else strictly. A number at the top ends with what comes after it.
    """

    __slots__ = ("_closers", "_key", "_rest", "_step", "done", "failed")

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._closers: list[str] = []  # what closes the brackets that are open
        self._key = False  # the string that is being read is a key
        self._rest = ""  # of a literal
        self._step: Callable[[JsonValue, str, int], int] = JsonValue._value

    def read(self, text: str, at: int) -> int:
        """Read on from `at`; return where the value ended or failed, or the length of `text`."""
        while at < len(text) and not self.done and not self.failed:
            at = self._step(self, text, at)
        return at

    # Each step reads at least one character, fails, or goes to a step that does.

    def _value(self, text: str, at: int) -> int:
        character = text[at]
        if character in "{[":
            self._closers.append("}" if character == "{" else "]")
            self._step = JsonValue._first_key if character == "{" else JsonValue._first_element
        elif character == '"':
            self._key, self._step = False, JsonValue._string
        elif character in _LITERALS:
            self._rest, self._step = _LITERALS[character], JsonValue._literal
        elif character in "-0123456789":
            self._step = JsonValue._number
        elif character not in SPACE:
            return self._fail(at)
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        return self._close(at) if text[at] == "}" else self._next_key(text, at)

    def _next_key(self, text: str, at: int) -> int:
        if text[at] == '"':
            self._key, self._step = True, JsonValue._string
        elif text[at] not in SPACE:
            return self._fail(at)
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        if text[at] == ":":
            self._step = JsonValue._value
        elif text[at] not in SPACE:
            return self._fail(at)
        return at + 1

    def _first_element(self, text: str, at: int) -> int:
        if text[at] == "]":
            return self._close(at)
        if text[at] in SPACE:
            return at + 1
        return self._value(text, at)

    def _after(self, text: str, at: int) -> int:
        if text[at] == self._closers[-1]:
            return self._close(at)
        if text[at] == ",":
            self._step = JsonValue._next_key if self._closers[-1] == "}" else JsonValue._value
        elif text[at] not in SPACE:
            return self._fail(at)
        return at + 1

    def _string(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        assert match is not None, "it matches nothing, too"
        at = match.end()
        if at == len(text):
            return at
        if text[at] == '"':
            if self._key:
                self._step = JsonValue._colon
            else:
                self._end()
        elif text[at] == "\\":
            self._step = JsonValue._escape
        else:
            return self._fail(at)
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._rest, self._step = "xxxx", JsonValue._digits
        elif text[at] in '"\\/bfnrt':
            self._step = JsonValue._string
        else:
            return self._fail(at)
        return at + 1

    def _digits(self, text: str, at: int) -> int:
        if text[at] not in _HEX:
            return self._fail(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._step = JsonValue._string
        return at + 1

    def _literal(self, text: str, at: int) -> int:
        if text[at] != self._rest[0]:
            return self._fail(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._end()
        return at + 1

    def _number(self, text: str, at: int) -> int:
        match = _NUMBER.match(text, at)
        assert match is not None, "it matches nothing, too"
        if match.end() < len(text):
            self._end()
        return match.end()

    def _close(self, at: int) -> int:
        self._closers.pop()
        self._end()
        return at + 1

    def _end(self) -> None:
        self.done = not self._closers
        self._step = JsonValue._after

    def _fail(self, at: int) -> int:
        self.failed = True
        return at
