"""What a request for a response may say; whatever is wrong names its field."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.errors import BadRequest
from gateway.api.responses.answers import Response
from gateway.api.responses.items import read_items
from gateway.api.responses.objects import head_of
from gateway.api.responses.request import LOGPROBS, OFF, ResponseRequest, parse_response

WORDS = [
    "type",
    "role",
    "content",
    "text",
    "id",
    "call_id",
    "name",
    "arguments",
    "output",
    "format",
    "schema",
    "mode",
    "tools",
]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def read(**fields: Any) -> ResponseRequest:
    """Read a request that says hello, and `fields`."""
    return parse_response(json.dumps({"model": "tiny", "input": "Hello"} | fields).encode())


def refusal(**fields: Any) -> BadRequest:
    """Return how such a request is refused, its items included."""
    with pytest.raises(BadRequest) as caught:
        read_items(read(**fields).input)
    assert caught.value.param is not None
    assert f"`{caught.value.param}`" in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["Hello"]}, "input[0]"),
        ({"input": [{"role": "user", "content": "x"}] * 2049}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": "x", "name": "y"}]}, "input[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": "x"}, {"type": "reasoning", "id": "r"}]}, "input[1].type"),
        ({"input": [{"type": ["message"], "role": "user", "content": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "call_id": "", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "function", "name": "f", "async": True}]}, "tools[0].async"),
        ({"tools": [TOOL, {"type": "function", "name": "g", "async_": True}]}, "tools[1].async"),
        ({"tools": [{"type": "function", "name": "f", "output_schema": {}}]}, "tools[0].output_schema"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a+"}, "regex"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": [LOGPROBS]}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"background": True, "store": False}, "store"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"reasoning": {"effort": None, "mode": "pro"}}, "reasoning"),
        *(({name: {"id": "x"}}, name) for name in OFF),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    """A 400 names the field as the client wrote it."""
    assert refusal(**fields).param == param


@pytest.mark.parametrize("name", ["user", "model", "tools", "previous_response_id"])
def test_a_field_that_is_not_there_for_long_texts_is_bounded(name: str) -> None:
    """Only the input and the instructions may be as long as a body may."""
    error = refusal(**{name: "x" * (1 << 19)})
    assert (error.param, error.message) == (name, f"`{name}` is over 512 KiB: send less")
    read(input="x" * (1 << 20), instructions="x" * (1 << 20))


def test_a_built_in_tool_is_refused_with_the_reason() -> None:
    """Who asks for a web search learns that there is none."""
    assert "no built-in tools" in refusal(tools=[{"type": "web_search"}]).message


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": None, "conversation": None, "prompt": None},
        {"reasoning": {"effort": None, "summary": None}, "background_options": {"completion_window": "soonest"}},
        {"reasoning": dict.fromkeys(("context", "effort", "generate_summary", "mode", "summary"))},
        {"tools": [TOOL | dict.fromkeys(("async", "async_", "allowed_callers", "defer_loading", "output_schema"))]},
        {"tools": [TOOL | {"async": False, "defer_loading": False}]},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "max_tool_calls": 3},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"include": [LOGPROBS], "top_logprobs": 20},
        {"include": [], "truncation": "disabled", "user": "u", "safety_identifier": "s", "service_tier": "auto"},
        {"seed": 1, "stop": ["x"], "top_k": 5, "min_p": 0.1, "regex": "a+", "session_id": "s", "session_ttl": 60},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ],
    ids=str,
)
def test_what_is_served_is_taken(fields: dict[str, Any]) -> None:
    """Fields at their default, and those of the other surfaces that sample."""
    read(**fields)


def test_the_object_says_what_held() -> None:
    """A response repeats what was asked, with the defaults of what was not."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    request = read(
        instructions="Be brief.",
        temperature=0.5,
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        metadata={"k": "v"},
        service_tier="flex",
        max_output_tokens=5,
    )
    head = head_of(request, response_id="resp_1", created_at=1)
    assert head["tools"] == [tool | {"description": None, "strict": True}]
    assert head["tool_choice"] == {"type": "function", "name": "f"}
    assert head["text"]["format"]["schema"] == {"type": "object"}
    assert (head["temperature"], head["top_p"], head["max_output_tokens"]) == (0.5, 1.0, 5)
    assert (head["instructions"], head["metadata"], head["service_tier"]) == ("Be brief.", {"k": "v"}, "flex")
    assert (head["store"], head["background"], head["truncation"]) == (True, False, "disabled")


def test_items_are_kept_in_one_form() -> None:
    """The short form of a message and the long one are the same item; ids that came with an item stay."""
    given = read_items(
        [
            {"role": "user", "content": "x"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "y", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}", "status": None},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "z"}]},
        ]
    )
    items = [one.item("made") for one in given]  # type: ignore[union-attr]  # there is no reference among them
    assert items[0] == items[1]
    assert items[0]["content"] == [{"type": "input_text", "text": "x"}]
    assert items[2]["content"] == [{"type": "output_text", "annotations": [], "logprobs": [], "text": "y"}]
    assert [item["id"] for item in items] == ["made", "made", "made", "fc_1", "made"]
    assert items[4]["output"] == [{"type": "input_text", "text": "z"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"parameters": {"type": "array"}}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
            },
            "tool_choice.tools",
        ),
    ],
    ids=str,
)
def test_tools_are_named_as_this_surface_has_them(fields: dict[str, Any], param: str) -> None:
    """A function is not in a member of its own here."""
    assert refusal(**fields).param == param


def test_a_function_is_strict_unless_it_says_otherwise() -> None:
    """As at OpenAI, and unlike on the chat surface."""
    request = read(tools=[TOOL, TOOL | {"name": "g", "strict": False}, TOOL | {"name": "h", "strict": True}])
    assert request.chat_tools is not None
    assert [tool.function.strict for tool in request.chat_tools] == [True, False, True]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from([*ResponseRequest.__struct_fields__, *OFF]), JSON, max_size=6))
def test_whatever_is_sent_is_taken_or_refused(fields: dict[str, Any]) -> None:
    """Any values of any fields: a request that can be shown, or a refusal that names what is wrong."""
    with suppress(BadRequest):
        request = read(**fields)
        read_items(request.input)
        head = head_of(request, response_id="resp_1", created_at=1)
        msgspec.convert(json.loads(json.dumps(head | {"status": "queued"})), Response, strict=True)
