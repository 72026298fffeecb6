"""Functions and formats over a socket: the same code as chat's."""

import json
from typing import Any

from tests.gateway.realtime.dialling import HELLO, dial, receive, send, until, until_done
from tests.gateway.wire.stack import Stack, TenantInTest

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}


def test_call_and_its_answer(stack: Stack, tenant: TenantInTest) -> None:
    """A call comes as an item of its own, joins the conversation, and what it gave is read in the next turn."""
    with dial(stack, tenant.key(), path="/v1/realtime?model=tiny") as socket:
        send(socket, type="session.update", session={"tools": [WEATHER], "temperature": 0, "max_output_tokens": 200})
        until(socket, "session.updated")
        choice = {"type": "function", "name": "weather"}
        send(socket, type="response.create", response={"input": HELLO, "tool_choice": choice})
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "response.done":
            events.append(receive(socket))
        done = events[-1]["response"]
        assert done["status"] == "completed", done
        (call,) = done["output"]
        assert (call["type"], call["name"]) == ("function_call", "weather")
        assert json.loads(call["arguments"])["city"] in ("Bonn", "Rome")
        deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
        assert "".join(event["delta"] for event in deltas) == call["arguments"]
        assert {event["call_id"] for event in deltas} == {call["call_id"]}
        item = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"weather": "rain"}'}
        send(
            socket, type="conversation.item.create", item={"role": "user", "content": "hello"}, previous_item_id="root"
        )
        until(socket, "conversation.item.done")
        send(socket, type="conversation.item.create", item=item)
        until(socket, "conversation.item.done")
        send(socket, type="response.create", response={"tool_choice": "none", "max_output_tokens": 4})
        _, answer = until_done(socket)
    assert answer["status"] in ("completed", "incomplete"), answer
    assert [part["type"] for part in answer["output"]] == ["message"]


def test_format(stack: Stack, tenant: TenantInTest) -> None:
    """What the output must be is kept to here too; a schema that can't be served is refused under its name."""
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    with dial(stack, tenant.key(), path="/v1/realtime?model=tiny") as socket:
        send(socket, type="response.create", response={"input": HELLO, "response_format": form})
        text, done = until_done(socket)
        assert done["status"] == "completed", done
        assert json.loads(text)["city"] in ("Bonn", "Rome")
        send(socket, type="response.create", response={"input": HELLO, "regex": "("})
        error = until_done(socket)[1]["status_details"]["error"]
        assert error["param"] == "response.regex"


def test_logprobs(stack: Stack, tenant: TenantInTest) -> None:
    """Log-probabilities come with the text that they belong to, one a token."""
    with dial(stack, tenant.key(), path="/v1/realtime?model=tiny") as socket:
        response = {"input": HELLO, "logprobs": True, "top_logprobs": 2, "temperature": 0, "ignore_eos": True}
        send(socket, type="response.create", response=response | {"max_output_tokens": 12})
        scores: list[dict[str, Any]] = []
        while (event := receive(socket))["type"] != "response.done":
            if event["type"] == "response.output_text.delta":
                scores += event.get("logprobs", [])
    assert event["response"]["usage"]["output_tokens"] == len(scores) == 12
    assert all(len(score["top_logprobs"]) == 2 and score["logprob"] <= 0 for score in scores)


def test_logprobs_beside_a_call(stack: Stack, tenant: TenantInTest) -> None:
    """Log-probabilities are those of texts: a call comes whole without any, and no message opens for them."""
    with dial(stack, tenant.key(), path="/v1/realtime?model=tiny") as socket:
        choice = {"type": "function", "name": "weather"}
        response = {"input": HELLO, "logprobs": True, "top_logprobs": 1, "tools": [WEATHER], "temperature": 0}
        send(socket, type="response.create", response=response | {"tool_choice": choice})
        _, done = until_done(socket)
    assert done["status"] == "completed", done
    (call,) = done["output"]
    assert call["type"] == "function_call"
    assert json.loads(call["arguments"])["city"] in ("Bonn", "Rome")
