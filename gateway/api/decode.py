"""From bytes to a typed request, strictly: whatever is wrong is a 400 that names the field and the fix."""

import re
from collections.abc import Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import msgspec

from gateway.api.errors import BadRequest

MAX_OFF_BYTES = 4096  # of the value of a field that isn't served: no value that means "off" is longer

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


class Checked(Protocol):
    """A Struct with rules that its types don't hold."""

    def check(self) -> None:
        """Raise BadRequest where a rule is broken."""
        ...


Request = TypeVar("Request", bound=Checked)
Off = Mapping[str, tuple[object, ...]]


class Reader(Generic[Request]):
    """Reads bodies of one kind of request.

    Nearly every body is right, and goes from bytes to the Struct in one pass. One that isn't is read again, only far
    enough to say what is wrong: nothing is built of what nobody will use, however long it is.

    Args:
        kind: the Struct.
        off: fields that aren't served, each with the values that mean "off".
    """

    def __init__(self, kind: type[Request], off: Off) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
        self._off = off

    def read(self, body: bytes | bytearray) -> Request:
        """Read a body.

        Raises:
            BadRequest: it is not JSON (NaN, bad UTF-8, nesting without end included), not an object, or names the
                field that is wrong, and the fix.
        """
        try:
            request = self._decode(body)
        except _UNREADABLE:
            request = self._without_off(body)
        request.check()
        return request

    def _without_off(self, body: bytes | bytearray) -> Request:
        """Read a body without the fields that aren't served, or say what is wrong with it."""
        try:
            served = [
                msgspec.json.encode(name) + b":" + bytes(value)
                for name, value in self._split(body).items()
                if not self._is_off(name, value)
            ]
        except _UNREADABLE as error:
            _refuse_json(error)
        try:
            return self._decode(b"{" + b",".join(served) + b"}")
        except msgspec.ValidationError as error:
            raise _explain(str(error)) from error
        except _UNREADABLE as error:
            _refuse_json(error)

    def _is_off(self, name: str, value: msgspec.Raw) -> bool:
        """Say whether a field is one of those that aren't served. Raises BadRequest where it is one and not off."""
        if name not in self._off:
            return False
        short = len(bytes(value)) <= MAX_OFF_BYTES
        _check_off(name, msgspec.json.decode(value) if short else ..., self._off[name])
        return True


def decode_json(body: bytes | bytearray | str) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        BadRequest: not JSON (NaN, bad UTF-8, nesting without end included), or not an object.
    """
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except _UNREADABLE as error:
        _refuse_json(error)


def convert(value: object, kind: type[Request], off: Off) -> Request:
    """Build a request of `kind` from decoded JSON; fields in `off` must have one of the listed values, or null.

    Raises:
        BadRequest: names the field and the fix.
    """
    if not isinstance(value, dict):
        raise BadRequest("Expected a JSON object")
    for name, allowed in off.items():
        if name in value:
            _check_off(name, value[name], allowed)
    try:
        request = msgspec.convert({key: item for key, item in value.items() if key not in off}, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    request.check()
    return request


_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


def _refuse_json(error: Exception) -> NoReturn:
    if isinstance(error, RecursionError):
        raise BadRequest("The JSON is nested too deeply") from error
    if isinstance(error, msgspec.ValidationError):
        raise BadRequest("The body must be a JSON object") from error
    raise BadRequest(f"The body is not valid JSON: {error}") from error


def _check_off(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value is None or any(_same(value, one) for one in allowed):
        return
    fix = " or ".join(str(msgspec.json.encode(one), "utf-8") for one in allowed)
    raise BadRequest(f"`{name}` isn't supported{f' other than {fix}' if fix else ''}: leave it out", param=name)


def _same(value: object, allowed: object) -> bool:
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed


def _explain(text: str) -> BadRequest:
    """Turn msgspec's message, which ends in a path, into one that names the field as the client wrote it."""
    path = ""
    if match := _PATH.search(text):
        path, text = match[1].removeprefix("[...]"), text[: match.start()]
    if match := _UNKNOWN.match(text):
        field = f"{path}.{match[1]}".lstrip(".")
        return BadRequest(
            f"Unknown field `{field[:200]}`: it isn't supported, leave it out", param=field, code="unknown_field"
        )
    if match := _MISSING.match(text):
        field = f"{path}.{match[1]}".lstrip(".")
        return BadRequest(f"`{field}` is missing", param=field, code="missing_field")
    if not path:
        return BadRequest(text)
    return BadRequest(f"`{path}`: {text[:1].lower()}{text[1:]}", param=path)
