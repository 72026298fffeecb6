"""What a request may not say of tools: each mistake is named."""

from typing import Any

import msgspec
import pytest

from gateway.api.errors import BadRequest
from gateway.api.functions import CalledFunction, Function, FunctionTool, ToolCall, ToolChoice
from gateway.api.schemas import Message
from gateway.api.tools.checks import MAX_DEPTH, check_calls, check_tools, is_deeper


def tool(name: str = "f", **fields: Any) -> FunctionTool:
    """Return a tool."""
    return FunctionTool(function=Function(name=name, **fields))


def nested(levels: int) -> dict[str, Any]:
    """Return a schema of so many levels."""
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"a": schema}
    return schema


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([tool(), tool()], "tools[1].function.name"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters"),
        ([tool(parameters=nested(MAX_DEPTH + 1))], "tools[0].function.parameters"),
        ([tool(parameters={"a": "x" * (1 << 16)})], "tools[0].function.parameters"),
        ([tool(f"f{number}", parameters={"a": "x" * 60_000}) for number in range(9)], "tools"),
        ([tool("a"), tool("b", description="x" * (1 << 15))], "tools[1].function.description"),
    ],
)
def test_tools_that_cannot_be(tools: list[FunctionTool], field: str) -> None:
    """Names are given once, and schemas are of objects, and no larger or deeper than templates and workers bear."""
    with pytest.raises(BadRequest) as caught:
        check_tools(tools, None)
    assert caught.value.param == field
    assert f"`{field}`" in caught.value.message


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ({"type": "function", "function": {"name": "g"}}, "tool_choice.function.name"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]},
            },
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_choices_of_what_is_not_there(choice: dict[str, Any], field: str) -> None:
    """A choice names functions that are there."""
    with pytest.raises(BadRequest) as caught:
        check_tools([tool()], msgspec.convert(choice, ToolChoice))
    assert caught.value.param == field


def test_a_choice_without_tools() -> None:
    """To ask for a call takes tools; to ask for none, or for what comes, does not."""
    with pytest.raises(BadRequest) as caught:
        check_tools([], "required")
    assert caught.value.param == "tool_choice"
    for choice in ("none", "auto", None):
        check_tools(None, choice)  # type: ignore[arg-type]


def test_tools_that_are_fine() -> None:
    """A schema without a type, none at all, and one as deep as may be, are taken."""
    check_tools([tool("a"), tool("b", parameters={}), tool("c", parameters=nested(MAX_DEPTH))], "required")


def calling(*ids: str) -> Message:
    """Return an assistant's message with calls."""
    function = CalledFunction(name="f", arguments="{}")
    return Message(role="assistant", tool_calls=[ToolCall(id=one, function=function) for one in ids])


def answering(call_id: str) -> Message:
    """Return a tool's message."""
    return Message(role="tool", content="x", tool_call_id=call_id)


USER = Message(role="user", content="x")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([answering("a")], "messages[0].tool_call_id"),
        ([calling("a"), answering("b")], "messages[1].tool_call_id"),
        ([calling("a"), answering("a"), answering("a")], "messages[2].tool_call_id"),
        ([calling("a"), answering("a"), USER, answering("a")], "messages[3].tool_call_id"),
        ([USER, calling("a")], "messages[1].tool_calls"),
        ([USER, calling("a", "b"), answering("b"), USER], "messages[1].tool_calls"),
        ([calling("a"), calling("b")], "messages[0].tool_calls"),
        ([calling("a", "a")], "messages[0].tool_calls[1].id"),
        ([calling("")], "messages[0].tool_calls[0].id"),
    ],
)
def test_answers_follow_their_calls(messages: list[Message], field: str) -> None:
    """Each call is answered once, right behind it; nothing else is answered."""
    with pytest.raises(BadRequest) as caught:
        check_calls(messages)
    assert caught.value.param == field


def test_conversations_that_are_fine() -> None:
    """Answers may come in any order, and an id may come again in another message."""
    check_calls([USER, calling("a", "b"), answering("b"), answering("a"), calling("a"), answering("a"), USER])


def test_depth() -> None:
    """Levels are counted in objects and arrays; what is very deep takes no recursion."""
    assert not is_deeper({}, 1)
    assert not is_deeper({"a": 1}, 1)
    assert is_deeper({"a": []}, 1)
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert is_deeper(deep, 9_999)
