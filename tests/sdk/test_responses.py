"""Responses with the OpenAI Python SDK."""

import json
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.product import wait_for
from tests.sdk.place import ENDLESS, Place, SdkTenant

TIDE: Any = {
    "type": "function",
    "name": "tide",
    "description": "When the tide is high",
    "parameters": {
        "type": "object",
        "properties": {"place": {"enum": ["Husum", "Kiel"]}},
        "required": ["place"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Harbour(BaseModel):
    """What the parsing helper is asked for."""

    kind: Literal["river", "sea"]


@pytest.fixture
def respond(client: OpenAI, place: Place) -> Any:
    """Return a function that asks for a response, by default of 16 tokens, greedily."""

    def ask(entry: Any = "hello world", **options: Any) -> Any:
        defaults: dict[str, Any] = {"model": place.model, "max_output_tokens": 16, "temperature": 0}
        return client.responses.create(input=entry, **(defaults | options))

    return ask


def test_a_text(respond: Any, client: OpenAI, place: Place) -> None:
    """A text in, a message out; the chat surface says the same."""
    response = respond()
    assert response.id.startswith("resp_")
    assert (response.object, response.model) == ("response", place.model)
    assert response.status in ("completed", "incomplete")
    assert response.output[0].type == "message"
    answer = client.chat.completions.create(
        model=place.model, messages=[{"role": "user", "content": "hello world"}], max_tokens=16, temperature=0
    )
    assert response.output_text == answer.choices[0].message.content
    assert response.usage.output_tokens == answer.usage.completion_tokens
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_items_and_instructions(respond: Any) -> None:
    """Messages as items; instructions come before them."""
    plain = respond([{"role": "user", "content": "hello world"}])
    parts = respond([{"role": "user", "content": [{"type": "input_text", "text": "hello world"}]}])
    told = respond("hello world", instructions="be brief")
    assert plain.output_text == parts.output_text
    assert told.usage.input_tokens > plain.usage.input_tokens
    assert told.instructions == "be brief"


def test_a_limit_of_output(respond: Any) -> None:
    """A response that the limit ended is incomplete, and says why."""
    response = respond(max_output_tokens=16, extra_body={"ignore_eos": True})
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_stream(respond: Any) -> None:
    """Events are numbered, begin with `created`, and their deltas join to the text of the whole."""
    events = list(respond(stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == respond().output_text


def test_the_helper(client: OpenAI, place: Place) -> None:
    """`responses.stream` ends with the whole response."""
    with client.responses.stream(
        model=place.model, input="Tell me of a harbour.", max_output_tokens=200, text_format=Harbour
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.output_text.done" in kinds
    assert isinstance(final.output_parsed, Harbour)


def test_retrieve_and_delete(respond: Any, client: OpenAI) -> None:
    """A stored response comes back as it was, until it is deleted."""
    made = respond()
    found = client.responses.retrieve(made.id)
    assert (found.id, found.output_text) == (made.id, made.output_text)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_input_items(respond: Any, client: OpenAI) -> None:
    """What went in can be listed."""
    made = respond("what went in")
    [item] = client.responses.input_items.list(made.id).data
    assert item.content[0].text == "what went in"


def test_not_stored(respond: Any, client: OpenAI) -> None:
    """`store: false` leaves nothing behind."""
    made = respond(store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_other_tenants_responses_do_not_exist(respond: Any, dial: Any, place: Place) -> None:
    """Nobody reads another tenant's."""
    made = respond()
    with pytest.raises(openai.NotFoundError):
        dial(api_key=place.tenant().key()).responses.retrieve(made.id)


def test_previous_response(respond: Any) -> None:
    """A response goes on from another: the conversation before it is part of the prompt."""
    first = respond()
    second = respond("go on", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def test_background(respond: Any, client: OpenAI) -> None:
    """A response in the background is queued at once, and is there when it has ended."""
    made = respond(background=True)
    assert made.status in ("queued", "in_progress", "completed", "incomplete")
    wait_for(
        lambda: client.responses.retrieve(made.id).status not in ("queued", "in_progress"), 60, "the end of a response"
    )
    assert client.responses.retrieve(made.id).output_text == respond().output_text


def test_cancel(client: OpenAI, place: Place, home: SdkTenant) -> None:
    """A response in the background can be cancelled, and is metered as far as it came."""
    raw = client.responses.with_raw_response.create(
        model=place.model,
        input="hello world",
        background=True,
        max_output_tokens=ENDLESS,
        extra_body={"ignore_eos": True},
    )
    cancelled = client.responses.cancel(raw.parse().id)
    assert cancelled.status == "cancelled"
    assert home.record(raw.headers["x-request-id"])["finish_reason"] == "cancelled"


def test_parse(client: OpenAI, place: Place) -> None:
    """`responses.parse` takes a Pydantic model and gives an instance of it."""
    response = client.responses.parse(
        model=place.model, input="Tell me of a harbour.", text_format=Harbour, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, Harbour)


def test_a_call_and_what_came_of_it(respond: Any, place: Place) -> None:
    """A function is called with arguments that fit; its output goes back in the next response."""
    made = respond(tools=[TIDE], tool_choice="required", max_output_tokens=300)
    [call] = [item for item in made.output if item.type == "function_call"][:1]
    assert call.name == "tide"
    assert json.loads(call.arguments)["place"] in ("Husum", "Kiel")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "at 14:05"}
    after = respond([output], previous_response_id=made.id, tools=[TIDE], tool_choice="none")
    assert after.output[0].type == "message"


def test_logprobs(respond: Any) -> None:
    """Included on request."""
    response = respond(include=["message.output_text.logprobs"], top_logprobs=2)
    told = response.output[0].content[0].logprobs
    assert told
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in told)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"entry": []}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"truncation": "never"}, "truncation"),
        ({"extra_body": {"colour": 1}}, "colour"),
    ],
    ids=["temperature", "limit", "no input", "hosted tool", "truncation", "unknown field"],
)
def test_what_is_refused(respond: Any, options: dict[str, Any], param: str) -> None:
    """A field that is wrong is named."""
    with pytest.raises(openai.BadRequestError) as caught:
        respond(**options)
    assert (caught.value.param or "").startswith(param)


def test_unknown_previous_response(respond: Any) -> None:
    """A response that isn't there can't be gone on from."""
    with pytest.raises(openai.APIStatusError) as caught:
        respond(previous_response_id="resp_" + "0" * 32)
    assert caught.value.status_code in (400, 404)
    assert caught.value.param == "previous_response_id"


def test_usage_is_metered(client: OpenAI, place: Place, home: SdkTenant) -> None:
    """The ledger has what the response said, under the request's id."""
    raw = client.responses.with_raw_response.create(model=place.model, input="hello world", max_output_tokens=8)
    usage = raw.parse().usage
    assert usage is not None
    assert home.record(raw.headers["x-request-id"])["completion_tokens"] == usage.output_tokens
