"""One call that comes in pieces: a function's name, then its arguments, as Mistral's newer models write it."""

import re
from collections.abc import Container

from gateway.api.tools.call import Reading
from gateway.api.tools.json_value import JsonValue

_HEAD = re.compile(r"([a-zA-Z0-9_-]{1,64})\s*(?:\[CALL_ID\][^\s\[{]{1,64})?\s*(?:\[ARGS\])?\s*")
_MAX_HEAD = 256  # characters before the arguments


class NamedReader:
    """Reads `f[ARGS]{...}`; `[ARGS]` may be missing, and `[CALL_ID]` with an id may stand before it."""

    def __init__(self, names: Container[str]) -> None:
        self.name = ""
        self.begun = False
        self.state = Reading.ON
        self._names = names
        self._head = ""
        self._value = JsonValue()
        self._fresh: list[str] = []

    def read(self, text: str, at: int) -> int:
        """Read on from `at`; return where the call ended or failed, or the length of `text`."""
        if not self.begun:
            at = self._read_head(text, at)
        if not self.begun or at == len(text):
            return at
        end = self._value.read(text, at)
        self._fresh.append(text[at:end])
        if self._value.failed:
            self.state = Reading.BROKEN
        elif self._value.done:
            self.state = Reading.DONE
        return end

    def take(self) -> str:
        """Return the arguments that have come since the last time."""
        fresh = "".join(self._fresh)
        self._fresh.clear()
        return fresh

    def _read_head(self, text: str, at: int) -> int:
        brace = text.find("{", at)
        end = len(text) if brace < 0 else brace
        self._head += text[at:end]
        match = _HEAD.fullmatch(self._head) if brace >= 0 else None
        if len(self._head) > _MAX_HEAD or (brace >= 0 and (match is None or match[1] not in self._names)):
            self.state = Reading.FAILED
        elif match is not None:
            self.name, self.begun = match[1], True
        return end
