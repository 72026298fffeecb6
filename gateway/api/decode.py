"""From bytes to a typed request, strictly: whatever is wrong is a 400 that names the field and the fix."""

import re
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from gateway.api.errors import BadRequest

_PATH = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


class Checked(Protocol):
    """A Struct with rules that its types don't hold."""

    def check(self) -> None:
        """Raise BadRequest where a rule is broken."""
        ...


Request = TypeVar("Request", bound=Checked)
Off = Mapping[str, tuple[object, ...]]


def decode_json(body: bytes | bytearray | str) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        BadRequest: not JSON (NaN, bad UTF-8, nesting without end included), or not an object.
    """
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise BadRequest("The JSON is nested too deeply") from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object")
    return value


def convert(value: object, kind: type[Request], off: Off) -> Request:
    """Build a request of `kind` from decoded JSON; fields in `off` must have one of the listed values, or null.

    Raises:
        BadRequest: names the field and the fix.
    """
    if not isinstance(value, dict):
        raise BadRequest("Expected a JSON object")
    for name, allowed in off.items():
        if value.get(name) is not None and not any(_same(value[name], one) for one in allowed):
            fix = " or ".join(str(msgspec.json.encode(one), "utf-8") for one in allowed)
            raise BadRequest(f"`{name}` isn't supported{f' other than {fix}' if fix else ''}: leave it out", param=name)
    try:
        request = msgspec.convert({key: item for key, item in value.items() if key not in off}, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    request.check()
    return request


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
