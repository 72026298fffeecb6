"""Steps as events: their order, their numbers, what the SDK's own types say of them, and what it makes of them."""

from typing import Any, cast

import pytest
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.api.responses.document import Document, Ending, Step
from gateway.api.responses.narrator import Event, Narrator, response_of
from gateway.api.responses.objects import head_of
from gateway.api.responses.request import parse_response

ID = "resp_" + "ab" * 16
USAGE = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 5,
}
DONE = Ending(status="completed", at=9, usage=USAGE)
SCORE = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]}
CALL = [
    Step("admitted"),
    Step("text", "Let me see."),
    Step("call", "look_up", "call_1"),
    Step("arguments", '{"of":'),
    Step("arguments", '"x"}'),
    Step("call", "count", "call_2"),
]

_EVENTS = TypeAdapter[Any](ResponseStreamEvent)
_RESPONSE = TypeAdapter[Any](Response)


def head(body: str = '{"model": "tiny", "input": "Hello"}') -> dict[str, Any]:
    """Return the head of a response."""
    return head_of(parse_response(body.encode()), response_id=ID, created_at=8)


def told(steps: list[Step], ending: Ending | None = DONE, **changes: Any) -> list[Event]:
    """Return all events of a response."""
    narrator = Narrator(head() | changes)
    events = narrator.opening()
    for step in steps:
        events += narrator.take(step)
    return events if ending is None else events + narrator.end(ending)


def kinds(events: list[Event]) -> list[str]:
    """Return the events' types without what all begin with."""
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_is_told_in_openais_order() -> None:
    """An item and its part are announced, filled and closed; numbers run on from 0."""
    events = told([Step("admitted"), Step("text", "Hel"), Step("text", "lo")])
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[6]["text"] == events[7]["part"]["text"] == events[8]["item"]["content"][0]["text"] == "Hello"
    last = events[-1]["response"]
    assert (last["status"], last["usage"], last["completed_at"]) == ("completed", USAGE, 9)
    assert last["output"] == [events[8]["item"]]


def test_calls_are_items_of_their_own() -> None:
    """A message ends where a call begins, a call where the next one does; each has its place and its arguments."""
    events = told(CALL)
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in items] == [
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call", "completed"),
    ]
    assert [(item["name"], item["call_id"], item["arguments"]) for item in items[1:]] == [
        ("look_up", "call_1", '{"of":"x"}'),
        ("count", "call_2", ""),
    ]
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert [(event["output_index"], event["item_id"], event["delta"]) for event in deltas] == [
        (1, items[1]["id"], '{"of":'),
        (1, items[1]["id"], '"x"}'),
    ]
    assert len({item["id"] for item in items}) == 3
    assert events[-1]["response"]["output"] == items


@pytest.mark.parametrize(
    ("steps", "ending"),
    [
        ([Step("admitted"), Step("text", "a", "", (SCORE,))], DONE),
        (CALL, DONE),
        ([Step("admitted")], DONE),
        (
            [Step("admitted"), Step("text", "a")],
            Ending(status="incomplete", at=9, usage=USAGE, reason="max_output_tokens"),
        ),
        ([Step("text", "a")], Ending(status="failed", at=9, error={"code": "server_error", "message": "no"})),
        ([], Ending(status="failed", at=9, error={"code": "rate_limit_exceeded", "message": "no"})),
        (CALL, Ending(status="cancelled", at=9)),
    ],
    ids=["scored", "calls", "empty", "cut", "failed", "refused", "cancelled"],
)
@pytest.mark.parametrize("background", [False, True], ids=["waited-for", "background"])
def test_the_sdks_types_take_every_event(steps: list[Step], ending: Ending, background: bool) -> None:
    """Each is valid as it stands, and the SDK's own reading of the stream raises nothing."""
    events = told(steps, ending, background=background)
    state = ResponseStreamState[Any](input_tools=omit, text_format=omit)
    for event in events:
        state.handle_event(cast(Any, _EVENTS.validate_python(event)))
    assert kinds(events)[-1] == ("incomplete" if ending.status == "cancelled" else ending.status)
    assert _RESPONSE.validate_python(events[-1]["response"]).status == ending.status


def test_an_output_that_is_cut_off_says_so() -> None:
    """What was being written is incomplete; what was there before is not."""
    ending = Ending(status="incomplete", at=9, usage=USAGE, reason="max_output_tokens")
    last = told(CALL, ending)[-1]["response"]
    assert [item["status"] for item in last["output"]] == ["completed", "completed", "incomplete"]
    assert (last["incomplete_details"], last["completed_at"]) == ({"reason": "max_output_tokens"}, None)


def test_a_background_waits_in_the_queue_first() -> None:
    """It is queued until a worker has admitted it; another one is in progress from the first."""
    events = told([Step("admitted")], None, background=True)
    assert kinds(events) == ["created", "queued", "in_progress"]
    assert [event["response"]["status"] for event in events] == ["queued", "queued", "in_progress"]


def test_what_is_stored_tells_the_same() -> None:
    """A document's object is that of the last event; one that goes on shows what there is so far."""
    document = Document(head=head(), input=[], steps=tuple(CALL), ending=DONE)
    assert response_of(document) == told(CALL)[-1]["response"]
    narrator = Narrator(head())
    narrator.take(Step("text", "so fa"))
    assert narrator.response["output"][0] == {
        "id": "msg_" + "ab" * 16 + "0000",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "so fa"}],
    }


def test_log_probabilities_go_with_their_text() -> None:
    """They are in the delta, and all of them in the part."""
    events = told([Step("text", "a", "", (SCORE,)), Step("text", "", "", (SCORE,)), Step("text", "b")])
    assert [len(event["logprobs"]) for event in events if event["type"] == "response.output_text.delta"] == [1, 1, 0]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == [SCORE, SCORE]
