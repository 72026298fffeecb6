"""The events of a response's output."""

import json
from typing import Any

from gateway.api.tools.pieces import Arguments, CallBegun, CallEnded, Content
from gateway.realtime.output import Output


def decoded(said: list[str]) -> list[dict[str, Any]]:
    """Return events as objects."""
    return [json.loads(event) for event in said]


def test_text_then_calls() -> None:
    """Each item opens after the one before it has closed, with the next index, and what it says adds up."""
    output = Output("resp_1", "item_before", joins=True)
    events: list[dict[str, Any]] = []
    for piece in (
        Content("Let me "),
        Content("see."),
        CallBegun(0, "call_1", "weather"),
        Arguments(0, '{"city":'),
        Arguments(0, '"Bonn"}'),
        CallEnded(0),
        CallBegun(1, "call_2", "wind"),
        Arguments(1, "{}"),
    ):
        events += decoded(output.take(piece))
    events += decoded(output.close("completed"))
    assert [event["type"] for event in events] == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        *(
            "response.output_item.added",
            "conversation.item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "conversation.item.done",
            "response.output_item.done",
        ),
        *(
            "response.output_item.added",
            "conversation.item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "conversation.item.done",
            "response.output_item.done",
        ),
    ]
    objects = output.objects()
    assert objects[0]["content"] == [{"type": "output_text", "text": "Let me see."}]
    assert [item.get("call_id") for item in objects] == [None, "call_1", "call_2"]
    assert [item.get("arguments") for item in objects] == [None, '{"city":"Bonn"}', "{}"]
    ended = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in ended] == [0, 1, 2]
    assert [event["item"] for event in ended] == objects
    placed = [event["previous_item_id"] for event in events if event["type"] == "conversation.item.done"]
    assert placed == ["item_before", objects[0]["id"], objects[1]["id"]]


def test_out_of_the_conversation() -> None:
    """An output that doesn't join tells nothing of a conversation."""
    output = Output("resp_1", None, joins=False)
    events = decoded(output.text("x")) + decoded(output.close("incomplete"))
    assert not [event for event in events if event["type"].startswith("conversation")]
    assert output.objects()[0]["status"] == "incomplete"


def test_nothing_said() -> None:
    """An empty output closes without a word; an empty text opens a message and adds nothing to it."""
    output = Output("resp_1", None, joins=False)
    assert output.is_empty
    assert output.close("completed") == []
    kinds = [event["type"] for event in decoded(output.text("") + output.close("completed"))]
    assert "response.output_text.delta" not in kinds
    assert output.objects()[0]["content"] == [{"type": "output_text", "text": ""}]
    assert not output.is_empty


def test_scores_go_with_the_text() -> None:
    """Log-probabilities stand in the delta of the text that they belong to."""
    output = Output("resp_1", None, joins=False)
    score = {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}
    deltas = [event for event in decoded(output.text("x", [score])) if event["type"] == "response.output_text.delta"]
    assert deltas[0]["logprobs"] == [score]
