"""Bodies that nobody would send: changed from good ones, broken as bytes, or made to hurt."""

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

HELLO = [{"role": "user", "content": "hello world"}]
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}

Json = Any
Path = tuple[str | int, ...]

DEEP = 500_000  # brackets; nothing reads so deep
DEEP_SCHEMA = b'{"items":' * 100_000 + b"{}" + b"}" * 100_000


def good_bodies(model: str) -> dict[str, Json]:
    """Return a body that is served, for every path that takes one."""
    return {
        "/v1/chat/completions": {
            "model": model,
            "messages": HELLO,
            "max_tokens": 2,
            "stream": False,
            "stop": ["x"],
            "logprobs": True,
            "top_logprobs": 1,
            "logit_bias": {"70": 1},
            "tools": [TOOL],
            "tool_choice": "none",
        },
        "/v1/completions": {
            "model": model,
            "prompt": "hello",
            "max_tokens": 2,
            "n": 1,
            "echo": True,
            "logprobs": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        "/v1/embeddings": {"model": model, "input": ["hello"], "encoding_format": "float"},
        "/v1/responses": {
            "model": model,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
            "max_output_tokens": 2,
            "store": True,
            "metadata": {"a": "b"},
            "text": {"format": {"type": "text"}},
        },
    }


NASTY: tuple[Json, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**32,
    2**53 + 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    0.5,
    -0.0,
    5e-324,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "\0",
    "a\0b",
    "\ud800",
    "\udfff\ud800",
    "\u202e\ufeff",
    "🙂" * 50,
    "%00%2e%2e/../",
    "x" * 5000,
    [],
    [[]],
    {},
    {"": ""},
    {"\0": "\ud800"},
    [None] * 50,
)
_ATOMS = st.sampled_from(NASTY) | st.text(max_size=20) | st.integers() | st.floats()
VALUES = st.recursive(
    _ATOMS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@st.composite
def changed(draw: st.DrawFn, good: Json, fields: tuple[str, ...]) -> Json:
    """Change a good body in one to four places: another value, one less, one more, the same within a list."""
    body = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 4))):
        places = list(_places(body))
        if not places:
            return body
        *parents, last = draw(st.sampled_from(places))
        holder = body
        for step in parents:
            holder = holder[step]
        match draw(st.sampled_from(["replace", "remove", "add", "wrap"])):
            case "replace":
                holder[last] = copy.deepcopy(draw(VALUES))
            case "remove":
                del holder[last]
            case "wrap":
                holder[last] = [holder[last]]
            case _:
                body[draw(st.sampled_from(fields) | st.text(max_size=12))] = copy.deepcopy(draw(VALUES))
    return body


def as_bytes(body: Json) -> bytes:
    """Encode what JSON can't hold too: NaN, and halves of characters as escapes."""
    return json.dumps(body).encode()


@st.composite
def broken(draw: st.DrawFn, good: bytes) -> bytes:
    """Break the bytes of a good body: cut, doubled, with bytes put in, turned over or left out."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["insert", "flip", "cut", "double", "drop", "utf8"])):
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "flip":
                data[at : at + 1] = bytes([data[at] ^ draw(st.integers(1, 255))]) if data else b""
            case "cut":
                del data[at:]
            case "double":
                data += data[at:]
            case "utf8":
                data[at:at] = draw(st.sampled_from([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88", b"\xe2\x82"]))
            case _:
                del data[at : at + draw(st.integers(1, 8))]
    return bytes(data)


def chat_head(model: str) -> bytes:
    """Return a good chat request without its last brace: what `HOSTILE` goes on from."""
    return b'{"model": "' + model.encode() + b'", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1'


# Bodies that are made to cost much, from the head of a good one; each is refused.
HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "a million stop strings": lambda head: head + b', "stop": [' + b",".join([b'"a"'] * 1_000_000) + b"]}",
    "a million messages": lambda _: b'{"model": "m", "messages": [' + b",".join([b"{}"] * 1_000_000) + b"]}",
    "many fields": lambda head: head + b"".join(b', "f%d": 0' % number for number in range(200_000)) + b"}",
    "many biases": lambda head: (
        head + b', "logit_bias": {' + b",".join(b'"%d": 1' % number for number in range(300_000)) + b"}}"
    ),
    "one field again and again": lambda head: head + b', "n": 1' * 400_000 + b', "n": 1e9}',
    "deep lists": lambda head: head + b', "stop": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": lambda head: head + b', "metadata": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "deep and never closed": lambda _: b"[" * (2 * DEEP),
    "a deep schema": lambda head: (
        head
        + b', "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": '
        + DEEP_SCHEMA
        + b"}}}"
    ),
    "a deep function": lambda head: (
        head + b', "tools": [{"type": "function", "function": {"name": "x", "parameters": ' + DEEP_SCHEMA + b"}}]}"
    ),
    "NaN": lambda head: head + b', "temperature": NaN}',
    "infinity": lambda head: head + b', "temperature": Infinity}',
    "a huge exponent": lambda head: head + b', "temperature": 1e999999999}',
    "a huge number": lambda head: head + b', "seed": ' + b"9" * 1_000_000 + b"}",
    "endless decimals": lambda head: head + b', "temperature": 3.' + b"1" * 1_000_000 + b"}",
    "a piece of a character": lambda head: head + b', "user": "\xf0\x9f"}',
    "half of a pair": lambda head: head + b', "stop": "\\ud83d"}',
    "a byte order mark": lambda head: b"\xef\xbb\xbf" + head + b"}",
    "another encoding": lambda head: (head + b"}").decode().encode("utf-16"),
    "a list": lambda head: b"[" + head + b"}]",
    "two objects": lambda head: head + b"}" + head + b"}",
    "a colon too few": lambda head: head + b', "n" 1}',
    "spaces": lambda _: b" " * 4_000_000,
    "nothing": lambda _: b"",
}

# These may be served: what counts is that they hold nobody up.
COSTLY: dict[str, Callable[[bytes], bytes]] = {
    "an expression that explodes": lambda head: head + b', "regex": "' + b"(a?){30}" * 40 + b'"}',
    "an expression that counts": lambda head: head + b', "regex": "((a{1000}){1000}){1000}"}',
}


def _places(body: Json, at: Path = ()) -> "list[Path]":
    found: list[Path] = []
    items: Any = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in items:
        found.append((*at, key))
        found += _places(value, (*at, key))
    return found
