"""From bytes to a typed request, strictly: whatever is wrong is a 400 that names the field and the fix."""

import gc
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast, get_type_hints

import msgspec

from gateway.api.allowed import allowed
from gateway.api.errors import BadRequest

MAX_OFF_BYTES = 4096  # of the value of a field that isn't served: no value that means "off" is longer
MAX_FIELD_BYTES = 1 << 19  # of one field that isn't there for long texts
LARGE_BYTES = 1 << 16  # of a body that may hold more objects than is good to make in one go
MAX_QUOTED = 100  # characters of a wrong value that a message repeats
MAX_VALUES = 1 << 17  # texts, lists and objects of one body: what takes long to make of few bytes; numbers do not

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$", re.DOTALL)
_IN_MAP = re.compile(r" - at (?:`key` in `\$\.(\w+)`|`\$\.(\w+)\[\.\.\.\]`)$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")
_FLOAT_FOR_INT = re.compile(r"^Expected `[^`]*\bint\b[^`]*`, got `float`")
_NUMBERS = re.compile(rb"[-+0-9.eE\[\], \t\r\n]++")  # possessive: it never goes back


class Checked(Protocol):
    """A Struct with rules that its types don't hold."""

    def check(self) -> None:
        """Raise BadRequest where a rule is broken."""
        ...


Request = TypeVar("Request", bound=Checked)
Off = Mapping[str, tuple[object, ...]]


class Reader(Generic[Request]):
    """Reads bodies of one kind of request.

    Nearly every body is right, and goes from bytes to the Struct in one pass. Of a large one the fields are measured
    first: nothing is made of what nobody will use. A number without a fraction is an integer however it is written,
    since languages with one kind of number write 1.0.

    Args:
        kind: the Struct.
        off: fields that aren't served, each with the values that mean "off".
        long: fields that may be as long as a body may; None: all.
    """

    def __init__(self, kind: type[Request], off: Off, long: Collection[str] | None = None) -> None:
        names = (*cast(Any, kind).__struct_encode_fields__, *off)
        raw = [(name, msgspec.Raw, msgspec.Raw()) for name in names]
        fields = msgspec.defstruct(f"{kind.__name__}Fields", raw, forbid_unknown_fields=True)
        self._decode = msgspec.json.Decoder(kind).decode
        self._split = msgspec.json.Decoder(fields).decode
        self._kind = kind
        self._names = names
        self._off = off
        self._long = long

    def read(self, body: bytes | bytearray) -> Request:
        """Read a body.

        Raises:
            BadRequest: it is not JSON (NaN, bad UTF-8, nesting without end included), not an object, or names the
                field that is wrong, and the fix.
        """
        if len(body) > LARGE_BYTES:
            with undisturbed():
                request = self._read(self._measured(body))
        else:
            request = self._read(body)
        request.check()
        return request

    def _read(self, body: bytes | bytearray) -> Request:
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            text = str(error)
            unknown = _UNKNOWN.match(text)
            if not (_FLOAT_FOR_INT.match(text) or (unknown is not None and unknown[1] in self._off)):
                raise self._explain(text, body) from error
        except _UNREADABLE as error:
            _refuse_json(error)
        return self._read_plain(body)

    def _read_plain(self, body: bytes | bytearray) -> Request:
        """Read a body without fields that aren't served, its integers written as such, or say which field is wrong."""
        served = []
        for name, value in self._fields(body):
            if name not in self._off:
                served.append((name, _with_integers(value)))
            else:
                _check_off(name, _value(value), self._off[name])
        try:
            return self._decode(_object(served))
        except msgspec.ValidationError as error:
            raise self._explain(str(error), body) from error
        except _UNREADABLE as error:
            _refuse_json(error)

    def _explain(self, text: str, body: bytes | bytearray) -> BadRequest:
        """As `_explain`; what is wrong in a map is named by its key, unless the map is long."""
        field = _map_of(text)
        value = dict(self._fields(body)).get(field, b"") if field else b""
        if not value or len(value) > LARGE_BYTES:
            return _explain(text, self._kind)
        try:
            return _explain(text, self._kind, _wrong_key(self._kind, field, msgspec.json.decode(value)))
        except _UNREADABLE as error:
            _refuse_json(error)

    def _measured(self, body: bytes | bytearray) -> bytes | bytearray:
        """Return a large body without what is in none of its fields, such as one that comes again under its name.

        Raises:
            BadRequest: a field is longer than is of use, or they have too many values; nothing has been made of any.
        """
        fields = self._fields(body)
        for name, value in fields:
            if self._long is not None and name not in self._long and len(value) > MAX_FIELD_BYTES:
                raise BadRequest(f"`{name}` is over {MAX_FIELD_BYTES >> 10} KiB: send less", param=name)
        if len(body) - sum(len(value) for _, value in fields) > LARGE_BYTES:
            body = _object(fields)
        if _num_brackets(body) + body.count(b'"') // 2 > MAX_VALUES:  # those within texts included
            _check_values(fields)
        return body

    def _fields(self, body: bytes | bytearray) -> list[tuple[str, bytes]]:
        """Return the fields that a body has, each as it is written; nothing is made of what is in them."""
        try:
            fields = self._split(body)
        except msgspec.ValidationError as error:
            raise _explain(str(error)) from error
        except _UNREADABLE as error:
            _refuse_json(error)
        every = [(name, bytes(getattr(fields, name))) for name in self._names]
        return [(name, value) for name, value in every if value]


def num_values(value: bytes, *, most: int) -> int:
    """Return how many texts, lists and objects a value has; where there are more than `most`, any number above that.

    Brackets and quotes are counted, at the speed of C, and no more than `most` texts are looked at.

    Args:
        value: JSON.
        most: up to which the number is of interest.
    """
    bare = value.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in value else value
    num_texts = bare.count(b'"') // 2
    if num_texts > most:
        return num_texts
    return num_texts + _num_brackets(b"".join(bare.split(b'"')[::2]))


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
    for name, values in off.items():
        if name in value:
            _check_off(name, value[name], values)
    given = {key: item for key, item in value.items() if key not in off}
    try:
        try:
            request = msgspec.convert(given, kind, str_keys=True)
        except msgspec.ValidationError as error:
            if not _FLOAT_FOR_INT.match(str(error)):
                raise
            request = msgspec.convert({key: _as_integer(item) for key, item in given.items()}, kind, str_keys=True)
    except msgspec.ValidationError as error:
        text = str(error)
        field = _map_of(text)
        raise _explain(text, kind, _wrong_key(kind, field, value[field]) if field else "") from error
    request.check()
    return request


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Python from looking for rubbish: it does so the more often, the more objects a body makes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


def _refuse_json(error: Exception) -> NoReturn:
    if isinstance(error, RecursionError):
        raise BadRequest("The JSON is nested too deeply") from error
    if isinstance(error, msgspec.ValidationError):
        raise _explain(str(error)) from error
    raise BadRequest(f"The body is not valid JSON: {error}") from error


def _object(fields: Iterable[tuple[str, bytes]]) -> bytes:
    """Return fields as one JSON object."""
    return b"{" + b",".join([msgspec.json.encode(name) + b":" + value for name, value in fields]) + b"}"


def _check_values(fields: Iterable[tuple[str, bytes]]) -> None:
    left = MAX_VALUES
    for name, value in fields:
        left -= num_values(value, most=left)
        if left < 0:
            raise BadRequest(
                f"`{name}` has too many entries: a body has at most {MAX_VALUES} texts, lists and objects", param=name
            )


def _num_brackets(value: bytes | bytearray) -> int:
    return value.count(b"[") + value.count(b"{")


def _with_integers(value: bytes) -> bytes:
    """Return a number, or a list of numbers or of such lists, as integers; anything else, and a long one, as it is."""
    if len(value) > MAX_FIELD_BYTES or not _NUMBERS.fullmatch(value):
        return value
    try:
        return msgspec.json.encode(_INTEGERS.decode(value))
    except msgspec.MsgspecError:  # one of them has a fraction, or is out of range: the reading itself names it
        return value


def _as_integer(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_INTEGERS = msgspec.json.Decoder(int | list[int | list[int]], strict=False)  # lax: 1.0 is an integer


def _value(raw: bytes) -> object:
    """Return a value that may mean "off"; one that is too long for that is not made."""
    if len(raw) > MAX_OFF_BYTES:
        return ...
    try:
        return msgspec.json.decode(raw)
    except _UNREADABLE as error:
        _refuse_json(error)


def _check_off(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value is None or any(_same(value, one) for one in allowed):
        return
    fix = " or ".join(str(msgspec.json.encode(one), "utf-8") for one in allowed)
    raise BadRequest(f"`{name}` isn't supported{f' other than {fix}' if fix else ''}: leave it out", param=name)


def _same(value: object, allowed: object) -> bool:
    """Return whether both are the same; a member that is null is as good as left out."""
    if isinstance(value, dict):
        value = {name: member for name, member in value.items() if member is not None}
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed


def _map_of(text: str) -> str:
    """Return the field with the map in which msgspec found a fault, without saying at which key; empty: none."""
    match = _IN_MAP.search(text)
    return match[1] or match[2] if match else ""


def _wrong_key(kind: type[object], field: str, value: object) -> str:
    """Return the first key of a map that is wrong, or whose value is; empty: it was in a field of the same name."""
    if not isinstance(value, dict):
        return ""
    hint = get_type_hints(kind, include_extras=True)[field]
    alone = msgspec.defstruct("Alone", [(field, hint)])
    for key, item in value.items():
        try:
            msgspec.convert({field: {key: item}}, alone, str_keys=True)
        except msgspec.ValidationError:
            return str(key)
    return ""


def _explain(text: str, kind: type[object] | None = None, key: str = "") -> BadRequest:
    """Turn msgspec's message, which ends in a path, into one that names the field as the client wrote it.

    Args:
        text: msgspec's.
        kind: of the request, whose types say what the field may be.
        key: of the map that the path ends with, where it is known.
    """
    path = ""
    if match := _PATH.search(text):
        path, text = match[1].removeprefix("[...]"), text[: match.start()]
    typed = path
    if key:
        path = f"{path.removesuffix('[...]')}.{key[:80]}"
    if match := _UNKNOWN.match(text):
        field = f"{path}.{match[1]}".lstrip(".")
        return BadRequest(
            f"Unknown field `{field[:200]}`: it isn't supported, leave it out", param=field, code="unknown_field"
        )
    if match := _MISSING.match(text):
        field = f"{path}.{match[1]}".lstrip(".")
        fix = _fix(kind, f"{typed}.{match[1]}")
        return BadRequest(f"`{field}` is missing{fix}", param=field, code="missing_field")
    if not path:
        return BadRequest("The body must be a JSON object" if text.startswith("Expected `object`") else text)
    text = text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…"
    return BadRequest(f"`{path}`: {text[:1].lower()}{text[1:]}{_fix(kind, typed)}", param=path)


def _fix(kind: type[object] | None, path: str) -> str:
    """Return what a field may be, to follow what is wrong with it; empty: its type lists no values."""
    listed = allowed(kind, path) if kind is not None else ""
    return f": it must be {listed}" if listed else ""
