"""A `response.create` turned into a request of the chat surface."""

from typing import Any

import pytest

from gateway.api.errors import BadRequest
from gateway.realtime.asking import ask
from gateway.realtime.conversation import Conversation
from gateway.realtime.items import read_item
from gateway.realtime.room import Room

BASE = {"model": "m", "input": "hello"}


def empty() -> Conversation:
    """Return a conversation with room."""
    return Conversation(Room().share("a"))


def messages(fields: dict[str, Any], conversation: Conversation | None = None) -> list[dict[str, Any]]:
    """Return the chat messages that `fields` ask for."""
    return ask(fields, conversation or empty()).request.conversation()


def test_fields_keep_their_meaning() -> None:
    """Fields of both surfaces go over as they are, renamed ones under chat's name."""
    asked = ask(
        BASE | {"temperature": 0.5, "max_output_tokens": 7, "session_id": "s", "instructions": "Be brief."},
        empty(),
    )
    assert asked.request.temperature == 0.5
    assert asked.request.limit == 7
    assert asked.request.session == "s"
    assert asked.request.conversation() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]
    assert (asked.source, asked.joins) == ("input", True)


@pytest.mark.parametrize(
    ("fields", "joins"),
    [
        ({"input": "x"}, True),
        ({"input": "x", "conversation": "auto"}, True),
        ({"input": "x", "conversation": "none"}, False),
        ({"messages": [{"role": "user", "content": "x"}]}, False),
        ({"messages": [{"role": "user", "content": "x"}], "conversation": "auto"}, True),
    ],
    ids=str,
)
def test_who_joins_the_conversation(fields: dict[str, Any], joins: bool) -> None:
    """Responses join as OpenAI's do; those of the stateless alias don't, unless they say so."""
    assert ask({"model": "m"} | fields, empty()).joins is joins


def test_infinite_output_is_no_limit() -> None:
    """`inf` is as good as nothing."""
    assert ask(BASE | {"max_output_tokens": "inf"}, empty()).request.limit == 0


def test_tools_are_nested() -> None:
    """Realtime's flat functions are chat's nested ones, and so is the one that is chosen."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "name": "weather", "description": "d", "parameters": parameters}]
    choice = {"type": "function", "name": "weather"}
    request = ask(BASE | {"tools": tools, "tool_choice": choice}, empty()).request
    assert request.tools is not None
    assert request.tools[0].function.name == "weather"
    assert request.tools[0].function.parameters == parameters
    assert request.tool_choice is not None
    assert request.tool_choice.function.name == "weather"  # type: ignore[union-attr]


def test_calls_and_their_outputs_are_messages() -> None:
    """Calls join the assistant's message that they follow; their outputs are the tool's."""
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call", "name": "wind", "arguments": "{}", "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": "storm"},
    ]
    told = messages({"model": "m", "input": items})
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool"]
    assert told[1]["content"] == "Let me see."
    assert [call["function"]["name"] for call in told[1]["tool_calls"]] == ["weather", "wind"]
    assert [message.get("tool_call_id") for message in told[2:]] == ["c1", "c2"]


def test_conversation_and_references() -> None:
    """Without an input the conversation speaks; an input may name its items."""
    conversation = empty()
    conversation.add(read_item({"role": "user", "content": "one", "id": "first"}, "item"))
    conversation.add(read_item({"role": "assistant", "content": "two"}, "item"))
    asked = ask({"model": "m"}, conversation)
    assert asked.source == "conversation"
    assert [turn["content"] for turn in asked.request.conversation()] == ["one", "two"]
    fields = {"model": "m", "input": [{"type": "item_reference", "id": "first"}, {"role": "user", "content": "three"}]}
    assert [turn["content"] for turn in messages(fields, conversation)] == ["one", "three"]
    with pytest.raises(BadRequest) as caught:
        ask({"model": "m", "input": [{"type": "item_reference", "id": "gone"}]}, conversation)
    assert (caught.value.param, caught.value.error_code) == ("response.input[0].id", "item_not_found")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "response.input"),
        ({"model": ""}, "response.model"),
        ({"input": {}}, "response.input"),
        ({"input": [5]}, "response.input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "response.input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_audio", "audio": ""}]}]},
            "response.input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "response.input[0].arguments"),
        ({"conversation": "other"}, "response.conversation"),
        ({"instructions": 5}, "response.instructions"),
        ({"max_completion_tokens": 5}, "response.max_completion_tokens"),
        ({"max_output_tokens": -1}, "response.max_output_tokens"),
        ({"max_output_tokens": "many"}, "response.max_output_tokens"),
        ({"tools": "all"}, "response.tools"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "response.tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "response.tools[0].name"),
        ({"tool_choice": "maybe"}, "response.tool_choice"),
        ({"stream": False}, "response.stream"),
        ({"voice": "alloy"}, "response.voice"),
        ({"best_of": 2}, "response.best_of"),
    ],
    ids=str,
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    """The field is named as the client wrote it, in `param` and in the message."""
    with pytest.raises(BadRequest) as caught:
        ask(BASE | fields, empty())
    assert caught.value.param == param
    assert param in caught.value.message


def test_unread_items_of_a_wrong_kind() -> None:
    """An item that the conversation can't have is named by its kind."""
    with pytest.raises(BadRequest) as caught:
        read_item({"type": "mcp_list_tools"}, "item")
    assert caught.value.param == "item.type"
