"""What an answer gave is input of the next turn, however the OpenAI Python SDK gives it: nothing has to be taken out.

Each is sent back as the SDK's object and in every form in which the SDK dumps it, and is as long a prompt as the bare
message: what the helpers add is taken and changes nothing.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.sdk.place import Place
from tests.sdk.test_realtime import until_done, wanted

pytestmark = [  # of the SDK's own: a socket's, and what Pydantic says of the parsed values in its objects
    pytest.mark.filterwarnings("ignore:connect\\(\\) must be used as a context manager:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]

ASK: Any = {"role": "user", "content": "Is it high tide?"}
SHORT: dict[str, Any] = {"max_tokens": 16, "extra_body": {"regex": "[a-c]"}}  # an output that ends by itself


class Tide(BaseModel):
    """What the helpers parse."""

    up: bool


TOOL: Any = openai.pydantic_function_tool(Tide, name="tide")
FLAT: Any = {"type": "function", **TOOL["function"]}
CALL: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
JSON_ROOM = 300  # tokens


def dumps(value: BaseModel) -> Iterator[Any]:
    """Return an object of the SDK's, and all forms in which it can be dumped."""
    dumped: Any = value
    yield value
    yield value.model_dump()
    yield value.model_dump(by_alias=True)
    yield value.model_dump(exclude_none=True)
    yield json.loads(value.model_dump_json())
    yield dumped.to_dict()
    yield dumped.to_dict(exclude_unset=False)


def created(client: OpenAI, model: str, **options: Any) -> Any:
    """Answer without a helper."""
    return client.chat.completions.create(model=model, messages=[ASK], **options)


def parsed(client: OpenAI, model: str, **options: Any) -> Any:
    """Answer with the parsing helper."""
    return client.chat.completions.parse(model=model, messages=[ASK], **options)


def streamed(client: OpenAI, model: str, **options: Any) -> Any:
    """Answer with the streaming helper."""
    with client.chat.completions.stream(model=model, messages=[ASK], **options) as stream:
        return stream.get_final_completion()


def answers_to(message: Any) -> list[Any]:
    """Return what came of a message's calls."""
    ids = [call.id for call in message.tool_calls or ()]
    return [{"role": "tool", "tool_call_id": call_id, "content": "yes"} for call_id in ids]


@pytest.fixture
def chat_length(client: OpenAI, place: Place) -> Callable[..., int]:
    """Return a function that sends messages and tells how many tokens they have."""

    def length(*messages: Any) -> int:
        turn: Any = [ASK, *messages, ASK]
        answer = client.chat.completions.create(model=place.model, messages=turn, max_tokens=1)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    return length


@pytest.fixture
def input_length(client: OpenAI, place: Place) -> Callable[..., int]:
    """Return a function that sends items and tells how many tokens they have."""

    def length(*items: Any) -> int:
        turn: Any = [ASK, *items, ASK]
        response = client.responses.create(model=place.model, input=turn, max_output_tokens=1, store=False)
        assert response.usage is not None
        return response.usage.input_tokens

    return length


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        (created, SHORT | {"logprobs": True}),
        (streamed, SHORT),
        (parsed, {"response_format": Tide, "max_tokens": JSON_ROOM}),
        (streamed, {"response_format": Tide, "max_tokens": JSON_ROOM}),
    ],
    ids=["create", "stream", "parse", "stream and parse"],
)
def test_a_message(
    client: OpenAI, place: Place, chat_length: Callable[..., int], answer: Any, options: dict[str, Any]
) -> None:
    """A message goes back, with what it was parsed to."""
    message = answer(client, place.model, **options).choices[0].message
    bare = chat_length({"role": "assistant", "content": message.content})
    assert [chat_length(form) for form in dumps(message)] == [bare] * 7


@pytest.mark.parametrize("answer", [created, parsed, streamed], ids=["create", "parse", "stream"])
def test_calls_of_a_message(client: OpenAI, place: Place, chat_length: Callable[..., int], answer: Any) -> None:
    """A message with calls goes back, with what their arguments were parsed to."""
    message = answer(client, place.model, tools=[TOOL], max_tokens=JSON_ROOM, **CALL).choices[0].message
    results = answers_to(message)
    call = message.tool_calls[0]
    function = {"name": call.function.name, "arguments": call.function.arguments}
    bare: Any = {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
    expected = chat_length(bare, *results)
    assert [chat_length(form, *results) for form in dumps(message)] == [expected] * 7


def test_calls_put_together_by_hand(client: OpenAI, place: Place, chat_length: Callable[..., int]) -> None:
    """The calls of a stream's deltas, put together as OpenAI's guide does, go back with their `index`."""
    calls: dict[int, Any] = {}
    for chunk in created(client, place.model, tools=[TOOL], max_tokens=JSON_ROOM, stream=True, **CALL):
        for piece in chunk.choices[0].delta.tool_calls or ():
            if piece.index in calls:
                calls[piece.index].function.arguments += piece.function.arguments
            else:
                calls[piece.index] = piece
    message: Any = {"role": "assistant", "tool_calls": list(calls.values())}
    dumped = message | {"tool_calls": [call.model_dump() for call in calls.values()]}
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "yes"}
    assert chat_length(message, result) == chat_length(dumped, result)


def responded(client: OpenAI, **options: Any) -> Any:
    """Respond without a helper."""
    return client.responses.create(**options)


def response_parsed(client: OpenAI, **options: Any) -> Any:
    """Respond with the parsing helper."""
    return client.responses.parse(**options)


def response_streamed(client: OpenAI, **options: Any) -> Any:
    """Respond with the streaming helper."""
    with client.responses.stream(**options) as stream:
        return stream.get_final_response()


def response_retrieved(client: OpenAI, **options: Any) -> Any:
    """Respond, and fetch the response."""
    return client.responses.retrieve(client.responses.create(**options).id)


TEXT: dict[str, Any] = {"max_output_tokens": 16, "extra_body": {"regex": "[a-c]"}}
SCORED = TEXT | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
PARSED = {"text_format": Tide, "max_output_tokens": JSON_ROOM}
CALLED = {"tools": [FLAT], "max_output_tokens": JSON_ROOM} | CALL


@pytest.mark.parametrize(
    ("respond", "options"),
    [
        (responded, SCORED),
        (response_retrieved, TEXT),
        (response_streamed, TEXT),
        (response_parsed, PARSED),
        (response_streamed, PARSED),
        (responded, CALLED),
        (response_retrieved, CALLED),
        (response_parsed, CALLED),
        (response_streamed, CALLED),
    ],
    ids=[
        "text with scores",
        "retrieved text",
        "streamed text",
        "parsed text",
        "text streamed and parsed",
        "call",
        "retrieved call",
        "parsed call",
        "streamed call",
    ],
)
def test_output_of_a_response(
    client: OpenAI, place: Place, input_length: Callable[..., int], respond: Any, options: dict[str, Any]
) -> None:
    """An item of a response's output goes back, with what was read out of it and the fields that are empty."""
    [item] = respond(client, model=place.model, input="Is it high tide?", **options).output
    bare: Any
    if item.type == "function_call":
        results = [{"type": "function_call_output", "call_id": item.call_id, "output": "yes"}]
        bare = {"type": item.type, "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
    else:
        results = []
        bare = {"role": "assistant", "content": item.content[0].text}
    expected = input_length(bare, *results)
    assert [input_length(form, *results) for form in dumps(item)] == [expected] * 7


def test_input_items_of_a_response(client: OpenAI, place: Place) -> None:
    """What went into a response, as it is listed, goes into another."""
    call = {"type": "function_call", "call_id": "c", "name": "tide", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "yes"}]}
    items: Any = [{"role": "developer", "content": "Be brief."}, ASK, call, result]
    options: Any = {"model": place.model, "max_output_tokens": 1}
    first = client.responses.create(input=items, **options)
    listed = list(client.responses.input_items.list(first.id, order="asc"))
    assert len(listed) == 4
    assert first.usage is not None
    for forms in zip(*map(dumps, listed), strict=True):
        again: Any = list(forms)
        counted = client.responses.input_tokens.count(model=place.model, input=again)
        assert counted.input_tokens == first.usage.input_tokens


def test_settings_of_a_response(client: OpenAI, place: Place) -> None:
    """A response's own tools, choice and reasoning are those of the next one."""
    options: Any = {"model": place.model, "input": "Is it high tide?", "max_output_tokens": 1}
    first = client.responses.create(tools=[FLAT], tool_choice={"type": "function", "name": "tide"}, **options)
    for form in dumps(first):
        given = dict(form) if isinstance(form, dict) else {name: getattr(form, name) for name in dict(form)}
        kept = {name: given.get(name) for name in ("tools", "tool_choice", "reasoning", "metadata", "truncation")}
        again = client.responses.create(**kept, **options)
        assert again.tools == first.tools
        assert again.tool_choice == first.tool_choice


def test_items_of_a_conversation(client: OpenAI, place: Place) -> None:
    """An item that a realtime socket told is one of another conversation, as is what a response gave."""
    with client.realtime.connect(model=place.model) as connection:
        connection.send({"type": "response.create", "response": wanted(4)})
        done = until_done(connection)[1]
        connection.send({"type": "conversation.item.create", "item": {"type": "message", **ASK}})
        while (event := connection.recv()).type != "conversation.item.done":
            pass
        told: Any = event
        for item in (*done.output, told.item):
            for form in dumps(item):
                turn = form.to_dict() if isinstance(form, BaseModel) else form
                again: Any = wanted(1, input=[turn, *wanted()["input"]], conversation="none")
                connection.send({"type": "response.create", "response": again})
                assert until_done(connection)[1].status == "incomplete"
