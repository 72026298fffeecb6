"""What a message says about a value that a field may not have; the cases are made of the types of every request."""

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from gateway.api.allowed import MAX_LISTED, allowed
from gateway.api.decode import Checked, Reader, convert
from gateway.api.embeddings import EmbeddingRequest
from gateway.api.errors import MAX_MESSAGE, BadRequest
from gateway.api.responses import items as response_items
from gateway.api.responses.request import ResponseRequest
from gateway.api.schemas import ChatRequest, CompletionRequest
from gateway.api.tokens import DetokenizeRequest, TokenizeRequest
from gateway.realtime import items as realtime_items
from gateway.realtime.asking import _Own
from gateway.realtime.events import _KINDS as EVENTS

KINDS: tuple[type[Any], ...] = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ResponseRequest,
    TokenizeRequest,
    DetokenizeRequest,
    response_items.Message,
    response_items.FunctionCall,
    response_items.FunctionCallOutput,
    response_items.ItemReference,
    realtime_items.MessageItem,
    realtime_items.CallItem,
    realtime_items.CallOutputItem,
    _Own,
    *EVENTS.values(),
)
WRONG = "no such value"


def cases(one: inspect.Type) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield, for each field that lists its values, its path, a value with WRONG there, and the values."""
    if isinstance(one, inspect.Metadata):
        yield from cases(one.type)
    elif isinstance(one, inspect.UnionType):
        kinds = [each.type if isinstance(each, inspect.Metadata) else each for each in one.types]
        if tags := [each.tag for each in kinds if isinstance(each, inspect.StructType) and each.tag_field]:
            yield ".type", {"type": WRONG}, tags
        for each in kinds:
            yield from _inner(each) if isinstance(each, inspect.StructType) else cases(each)
    elif isinstance(one, inspect.StructType):
        if one.tag_field:
            yield f".{one.tag_field}", {one.tag_field: WRONG}, [one.tag]
        yield from _inner(one)
    elif isinstance(one, inspect.ListType):
        for path, value, values in cases(one.item_type):
            yield f"[0]{path}", [value], values
    elif isinstance(one, inspect.LiteralType):
        yield "", WRONG, list(one.values)
    elif isinstance(one, inspect.EnumType):
        yield "", WRONG, [member.value for member in one.cls]


def _inner(one: inspect.StructType) -> Iterator[tuple[str, Any, list[Any]]]:
    tag = {one.tag_field: one.tag} if one.tag_field else {}
    for field in one.fields:
        for path, value, values in cases(field.type):
            yield f".{field.encode_name}{path}", tag | {field.encode_name: value}, values


ALL = [
    pytest.param(kind, path.lstrip("."), value, values, id=f"{kind.__module__}.{kind.__name__}{path}")
    for kind in KINDS
    for path, value, values in cases(inspect.type_info(kind))
]


@pytest.mark.parametrize(("kind", "path", "value", "values"), ALL)
def test_wrong_value_comes_with_the_right_ones(kind: type[Checked], path: str, value: Any, values: list[Any]) -> None:
    """Of each field of each request that has a list of values, every one is in the message, and no other."""
    with pytest.raises(BadRequest) as read:
        Reader(kind, {}).read(json.dumps(value).encode())
    with pytest.raises(BadRequest) as converted:
        convert(value, kind, {})
    for error in (read.value, converted.value):
        assert error.param == path
        listed = error.message.partition(": it must be ")[2]
        words = listed.removesuffix(" or an object").replace(" or ", ", ").replace(", an object", "").split(", ")
        assert sorted(words) == sorted(json.dumps(one) for one in values), error.message


def test_every_surface_has_such_fields() -> None:
    """The cases are of every request that has fields with lists of values, none of which is a guess."""
    assert {case.values[0] for case in ALL} >= {ChatRequest, CompletionRequest, EmbeddingRequest, ResponseRequest}
    assert len(ALL) > 20


def test_kind_that_is_missing_is_named() -> None:
    """A part without a `type` is told which ones there are."""
    with pytest.raises(BadRequest, match=r"`messages\[0\]\.content\[0\]\.type` is missing: it must be \"text\""):
        convert({"messages": [{"content": [{}]}]}, Part, {})


def test_long_wrong_value_leaves_room_for_the_right_ones() -> None:
    """The message repeats the beginning of what was sent, and ends with what may be."""
    with pytest.raises(BadRequest) as caught:
        convert({"role": "x" * 10_000}, response_items.Message, {})
    assert len(caught.value.message) < MAX_MESSAGE
    assert caught.value.message.endswith('it must be "assistant", "developer", "system" or "user"')


def test_many_values_are_cut_off() -> None:
    """A list of values has a bounded length."""
    values = Enum("Values", {f"V{number}": f"value-{number}" for number in range(200)})  # type: ignore[misc]  # computed
    many = msgspec.defstruct("Many", [("one", values)])
    listed = allowed(many, "one")
    assert listed.endswith(", …")
    assert len(listed) <= MAX_LISTED + 3


class _Text(msgspec.Struct, tag="text", tag_field="type"):
    text: str = ""


class _Other(msgspec.Struct, tag="other", tag_field="type"):
    text: str = ""


class _Turn(msgspec.Struct):
    content: list[_Text | _Other]


class Part(msgspec.Struct):
    """A request with parts of two kinds."""

    messages: list[_Turn]

    def check(self) -> None:
        """Do nothing."""
