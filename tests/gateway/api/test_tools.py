"""Calling of functions through real processes with the real OpenAI SDK."""

import json
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.gateway.wire.stack import Stack, TenantInTest

HELLO = [{"role": "user", "content": "hello world"}]


def tool(name: str, properties: dict[str, Any], *, strict: bool | None = None) -> dict[str, Any]:
    """Return a tool whose properties are all required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


SWITCH = tool("switch", {"on": {"type": "boolean"}})
PICK = tool("pick", {"colour": {"enum": ["red", "green"]}, "number": {"enum": [1, 2, 3]}})
TOOLS = [SWITCH, PICK]
NAMED = {"type": "function", "function": {"name": "pick"}}
ONE = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}


def check(call: Any) -> None:
    """Assert that a call is what its schema says."""
    arguments = json.loads(call.function.arguments)
    if call.function.name == "switch":
        assert arguments in ({"on": True}, {"on": False})
    else:
        assert call.function.name == "pick"
        assert arguments["colour"] in ("red", "green")
        assert arguments["number"] in (1, 2, 3)
        assert len(arguments) == 2


def test_a_call_and_its_answer(stack: Stack, tenant: TenantInTest) -> None:
    """A required call has arguments as the schema says and no content; its answer is told to the model."""
    client = stack.openai(tenant.key())
    first = client.chat.completions.create(**ONE, temperature=1, seed=1)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls
    assert call.id.startswith("call_")
    assert call.type == "function"
    check(call)
    answered = [*HELLO, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    second = client.chat.completions.create(model="tiny", messages=answered, tools=TOOLS, max_tokens=4)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    assert second.choices[0].finish_reason in ("stop", "length")
    third = client.chat.completions.create(model="tiny", messages=answered, max_tokens=4)
    assert first.usage.prompt_tokens > third.usage.prompt_tokens > 20


def test_stream_equals_whole(stack: Stack, tenant: TenantInTest) -> None:
    """A stream's pieces join to the calls of the whole answer: id, type and name first, then the arguments."""
    client = stack.openai(tenant.key())
    whole = client.chat.completions.create(**ONE, temperature=0)
    chunks = list(client.chat.completions.create(**ONE, temperature=0, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    pieces = [piece for delta in deltas for piece in delta.tool_calls or []]
    [call] = whole.choices[0].message.tool_calls
    assert {piece.index for piece in pieces} == {0}
    assert (pieces[0].type, pieces[0].function.name, pieces[0].function.arguments) == (
        "function",
        call.function.name,
        "",
    )
    assert pieces[0].id.startswith("call_")
    assert all(piece.id is None and piece.function.name is None for piece in pieces[1:])
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments
    assert len(pieces) > 1  # how many depends on the pace of who reads: what waits is joined
    assert not any(delta.content for delta in deltas)
    assert deltas[0].role == "assistant"
    assert deltas[0].content is None
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["tool_calls"]


def test_the_sdk_collects_a_stream(stack: Stack, tenant: TenantInTest) -> None:
    """The SDK's own helper for streams puts a call together, and content is null."""
    with stack.openai(tenant.key()).chat.completions.stream(**ONE) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.content is None
    check(message.tool_calls[0])


class Pick(pydantic.BaseModel):
    """Pick a colour."""

    colour: Literal["red", "green"]
    number: Literal[1, 2] | None = None


def test_the_sdk_parses_arguments(stack: Stack, tenant: TenantInTest) -> None:
    """A strict function made of a pydantic model comes back as that model."""
    answer = stack.openai(tenant.key()).chat.completions.parse(
        **ONE | {"tools": [openai.pydantic_function_tool(Pick)]}, temperature=1.5
    )
    picked = answer.choices[0].message.tool_calls[0].function.parsed_arguments
    assert isinstance(picked, Pick)


def test_a_named_function(stack: Stack, tenant: TenantInTest) -> None:
    """A function that is named is called, once; the reason is `stop`, as at OpenAI."""
    answer = stack.openai(tenant.key()).chat.completions.create(
        model="tiny", messages=HELLO, tools=TOOLS, tool_choice=NAMED
    )
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "pick"
    check(call)
    assert answer.choices[0].finish_reason == "stop"


def test_allowed_tools(stack: Stack, tenant: TenantInTest) -> None:
    """Of the tools only those that are allowed are called."""
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "switch"}}]},
    }
    answer = stack.openai(tenant.key()).chat.completions.create(**ONE | {"tool_choice": choice}, n=4, temperature=1.5)
    assert {call.function.name for one in answer.choices for call in one.message.tool_calls} == {"switch"}


@pytest.mark.parametrize("stream", [False, True])
def test_several_outputs(stack: Stack, tenant: TenantInTest, stream: bool) -> None:
    """Each of several outputs has its own calls, with ids of their own."""
    client = stack.openai(tenant.key())
    calls: dict[int, list[str]] = {index: [] for index in range(5)}
    ids = set()
    if stream:
        for chunk in client.chat.completions.create(**ONE, n=5, temperature=1.5, stream=True):
            for choice in chunk.choices:
                for piece in choice.delta.tool_calls or []:
                    calls[choice.index].append(piece.function.arguments or "")
                    ids |= {piece.id} - {None}
    else:
        for choice in client.chat.completions.create(**ONE, n=5, temperature=1.5).choices:
            calls[choice.index] = [call.function.arguments for call in choice.message.tool_calls]
            ids |= {call.id for call in choice.message.tool_calls}
    assert len(ids) == 5
    assert all(json.loads("".join(arguments)) for arguments in calls.values())


def test_a_call_that_is_cut_off(stack: Stack, tenant: TenantInTest) -> None:
    """Where the tokens run out in a call, the reason is `length`, and of what marks a call nothing is told."""
    client = stack.openai(tenant.key())
    [early] = client.chat.completions.create(**ONE, max_tokens=3).choices
    assert (early.finish_reason, early.message.tool_calls, early.message.content) == ("length", None, "")
    [whole] = client.chat.completions.create(**ONE, temperature=0).choices
    [late] = client.chat.completions.create(**ONE, temperature=0, max_tokens=60).choices
    assert (late.finish_reason, late.message.content) == ("length", None)
    assert whole.message.tool_calls[0].function.arguments.startswith(late.message.tool_calls[0].function.arguments)


@pytest.mark.parametrize("more", [{"tool_choice": "none"}, {"tool_choice": "auto"}, {}])
def test_text(stack: Stack, tenant: TenantInTest, more: dict[str, Any]) -> None:
    """Where nothing has to be called, a model that calls nothing answers in text, streamed or not."""
    client = stack.openai(tenant.key())
    common = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "max_tokens": 24, "temperature": 0, **more}
    whole = client.chat.completions.create(**common).choices[0]
    chunks = list(client.chat.completions.create(**common, stream=True))
    assert whole.message.content
    assert whole.message.tool_calls is None
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content


def test_none_is_not_told_of_tools(stack: Stack, tenant: TenantInTest) -> None:
    """With `none` the prompt is as without tools."""
    client = stack.openai(tenant.key())
    common = {"model": "tiny", "messages": HELLO, "max_tokens": 1}
    without = client.chat.completions.create(**common)
    none = client.chat.completions.create(**common, tools=TOOLS, tool_choice="none")
    told = client.chat.completions.create(**common, tools=TOOLS)
    assert none.usage.prompt_tokens == without.usage.prompt_tokens < told.usage.prompt_tokens


def test_strict_functions_beside_text(stack: Stack, tenant: TenantInTest) -> None:
    """A strict function keeps text possible."""
    answer = stack.openai(tenant.key()).chat.completions.create(
        model="tiny", messages=HELLO, tools=[tool("switch", {"on": {"type": "boolean"}}, strict=True)], max_tokens=8
    )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


def test_an_answer_in_a_format(stack: Stack, tenant: TenantInTest) -> None:
    """With a format beside tools the output is a call or in the format."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    answer = stack.openai(tenant.key()).chat.completions.create(
        model="tiny",
        messages=HELLO,
        tools=[tool("switch", {"on": {"type": "boolean"}}, strict=True)],
        parallel_tool_calls=False,
        n=4,
        temperature=1.5,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    )
    for choice in answer.choices:
        if choice.message.tool_calls:
            check(choice.message.tool_calls[0])
        else:
            assert json.loads(choice.message.content)["a"] in (1, 2)


def test_logprobs_of_a_call(stack: Stack, tenant: TenantInTest) -> None:
    """Log-probabilities are told of every token of a call, streamed or not."""
    client = stack.openai(tenant.key())
    whole = client.chat.completions.create(**ONE, temperature=0, logprobs=True)
    chunks = client.chat.completions.create(**ONE, temperature=0, logprobs=True, stream=True)
    scores = [score for chunk in chunks if chunk.choices[0].logprobs for score in chunk.choices[0].logprobs.content]
    assert [score.token for score in scores] == [score.token for score in whole.choices[0].logprobs.content]
    assert "switch" in "".join(score.token for score in scores) or "pick" in "".join(score.token for score in scores)


CALL = {"id": "a", "type": "function", "function": {"name": "switch", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools[0].function.name"),
        ({"tools": [SWITCH, SWITCH]}, "tools[1].function.name"),
        ({"tools": [SWITCH] * 129}, "tools"),
        ({"tools": [tool("f", {"a": {"type": "oops"}}, strict=True)]}, "tools[0].function.parameters"),
        (
            {"tools": [SWITCH, tool("f", {"a": {"not": {}}}, strict=True)], "tool_choice": "auto"},
            "tools[1].function.parameters",
        ),
        ({"tools": None}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice.function.name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"regex": "a*", "tool_choice": "auto"}, "regex"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x", "tool_call_id": "a"}]}, "messages[1].tool_call_id"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL]}, *HELLO]}, "messages[1].tool_calls"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"use_beam_search": True}, "tools"),
    ],
)
def test_refusals(stack: Stack, tenant: TenantInTest, fields: dict[str, Any], param: str) -> None:
    """What can't be served is a 400 that names the field."""
    with stack.http(tenant.key()) as client:
        response = client.post("/v1/chat/completions", json=ONE | {"max_tokens": 4} | fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert f"`{param}`" in error["message"]


def test_no_chat_form(stack: Stack, tenant: TenantInTest) -> None:
    """A model without a chat form has no tools either, and says so."""
    with pytest.raises(openai.BadRequestError, match="/v1/completions"):
        stack.openai(tenant.key()).chat.completions.create(**ONE | {"model": "plain"})
