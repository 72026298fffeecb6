"""Tools with the OpenAI Python SDK: calls, streams of calls, their answers, and the parsing helpers."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.sdk.place import Place

ASK: list[Any] = [{"role": "user", "content": "When is high tide in Husum?"}]
TIDE: Any = {
    "type": "function",
    "function": {
        "name": "tide",
        "description": "When the tide is high",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"enum": ["Husum", "Kiel"]},
                "day": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["place", "day"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "description": "What time it is"}}


class Tide(BaseModel):
    """What a Pydantic tool is made of."""

    up: bool


@pytest.fixture
def ask(client: OpenAI, place: Place) -> Any:
    """Return a function that asks with a tool that must be called."""

    def answer(messages: Any = ASK, **options: Any) -> Any:
        defaults: dict[str, Any] = {
            "model": place.model,
            "tools": [TIDE],
            "tool_choice": "required",
            "max_tokens": 300,
            "temperature": 0,
        }
        return client.chat.completions.create(messages=messages, **(defaults | options))

    return answer


def check_tide(arguments: str) -> None:
    """Check what the schema says of the arguments."""
    given = json.loads(arguments)
    assert given["place"] in ("Husum", "Kiel") and 1 <= given["day"] <= 7


def test_a_call(ask: Any) -> None:
    """A call has an id, a name and arguments that fit the schema; the reason says that there is one."""
    choice = ask().choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert (call.type, call.function.name) == ("function", "tide")
    assert call.id
    check_tide(call.function.arguments)


def test_the_named_one(ask: Any) -> None:
    """`tool_choice` names the function to be called."""
    named = {"type": "function", "function": {"name": "tide"}}
    answer = ask(tools=[CLOCK, TIDE], tool_choice=named)
    assert {call.function.name for call in answer.choices[0].message.tool_calls} == {"tide"}


def test_none(ask: Any) -> None:
    """`none`: the tools are there and nothing is called."""
    message = ask(tool_choice="none", max_tokens=8).choices[0].message
    assert not message.tool_calls
    assert message.content


def test_auto(ask: Any) -> None:
    """`auto` leaves it to the model: a text or calls, and a reason that fits."""
    choice = ask(tool_choice="auto", max_tokens=24).choices[0]
    assert (choice.finish_reason == "tool_calls") == bool(choice.message.tool_calls)


def test_one_at_a_time(ask: Any) -> None:
    """Without parallel calls there is exactly one."""
    assert len(ask(parallel_tool_calls=False).choices[0].message.tool_calls) == 1


def test_a_stream_of_a_call(ask: Any) -> None:
    """Id and name come first, the arguments after, piece by piece; they join to what the whole answer has."""
    whole = ask(parallel_tool_calls=False).choices[0].message.tool_calls[0]
    name, call_id, arguments, reasons = "", "", "", []
    for chunk in ask(parallel_tool_calls=False, stream=True):
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            for piece in choice.delta.tool_calls or []:
                assert piece.index == 0
                assert not (arguments and piece.function.name), "the name comes before the arguments"
                call_id = piece.id or call_id
                name += piece.function.name or ""
                arguments += piece.function.arguments or ""
    assert (name, arguments) == ("tide", whole.function.arguments)
    assert call_id
    assert [reason for reason in reasons if reason] == ["tool_calls"]


def test_the_helper_accumulates_calls(client: OpenAI, place: Place) -> None:
    """`chat.completions.stream` tells the pieces of arguments and their end."""
    with client.chat.completions.stream(
        model=place.model,
        messages=ASK,
        tools=[TIDE],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert final.choices[0].message.tool_calls is not None


def test_an_answer_of_a_tool(ask: Any) -> None:
    """The call as the SDK gave it, and what came of it, go back in the next turn."""
    first = ask(parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "at 14:05"}
    answer = ask([*ASK, first, result], tool_choice="none", max_tokens=8)
    assert answer.choices[0].message.content


def test_pydantic_tools(client: OpenAI, place: Place) -> None:
    """The parsing helper gives the arguments as an instance of the tool's model."""
    tool = openai.pydantic_function_tool(Tide, name="tide")
    answer = client.chat.completions.parse(
        model=place.model,
        messages=ASK,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert isinstance(calls[0].function.parsed_arguments, Tide)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "not a name"}}]}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "another"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ],
    ids=["kind", "name", "unknown choice", "no tools"],
)
def test_what_is_refused(ask: Any, options: dict[str, Any], param: str) -> None:
    """A tool or a choice that can't be is a 400 that names it."""
    with pytest.raises(openai.BadRequestError) as caught:
        ask(**options)
    assert (caught.value.param or "").startswith(param)
