"""Whatever a client sends, the answer is an event's error that can be told, or the event is taken."""

import gc
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import ApiError
from gateway.realtime import events, says
from gateway.realtime.asking import ask
from gateway.realtime.conversation import Conversation
from gateway.realtime.items import item_object, read_item
from gateway.realtime.room import Room
from gateway.realtime.session import Session

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
NAMES = (
    *(
        "type",
        "event_id",
        "response",
        "response_id",
        "session",
        "item",
        "item_id",
        "previous_item_id",
        "model",
        "input",
    ),
    *(
        "messages",
        "role",
        "content",
        "text",
        "id",
        "status",
        "object",
        "name",
        "arguments",
        "call_id",
        "output",
        "tools",
    ),
    *(
        "tool_choice",
        "parameters",
        "function",
        "instructions",
        "max_output_tokens",
        "max_tokens",
        "temperature",
        "stop",
    ),
    *("conversation", "metadata", "logprobs", "top_logprobs", "response_format", "session_id", "n", "seed", "regex"),
)
WORDS = (
    *("response.create", "response.cancel", "session.update", "conversation.item.create", "conversation.item.delete"),
    *("message", "function_call", "function_call_output", "item_reference", "function", "user", "assistant", "system"),
    *(
        "input_text",
        "output_text",
        "text",
        "auto",
        "none",
        "required",
        "inf",
        "root",
        "completed",
        "tiny",
        "json_object",
    ),
)
JSON = st.recursive(
    SCALARS | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=25,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), JSON, max_size=8)


def told(error: ApiError) -> None:
    """Check that an error can be told."""
    event = json.loads(says.error_event(error, None))
    assert event["error"]["message"]


@given(st.text() | JSON.map(json.dumps) | OBJECTS.map(json.dumps))
def test_frames(frame: str) -> None:
    """A frame is an event, or is refused."""
    try:
        events.parse(frame)
    except events.EventRefused as refused:
        told(refused.error)


@given(OBJECTS, OBJECTS)
def test_responses(response: dict[str, Any], fields: dict[str, Any]) -> None:
    """A response is asked for, or is refused; a session takes its fields whole, or not at all."""
    share = Room().share("a")
    session, conversation = Session("tiny", share), Conversation(share)
    before, names = session.fields_of({}), []
    try:
        session.update(fields)
    except ApiError as error:
        told(error)
        assert session.fields_of({}) == before
    try:
        ask(session.fields_of(response), conversation)
    except ApiError as error:
        told(error)
        names.append(error.param or "response")
    assert all(name.startswith(("response", "conversation")) for name in names)


@given(st.lists(OBJECTS | st.builds(lambda text: {"role": "user", "content": text}, JSON), max_size=5))
def test_items(values: list[dict[str, Any]]) -> None:
    """An item joins, or is refused; those that have joined can be shown, and a response can be asked for."""
    conversation = Conversation(Room().share("a"))
    for value in values:
        try:
            item, _ = conversation.add(read_item(value, "item"))
        except ApiError as error:
            told(error)
            continue
        assert json.loads(json.dumps(item_object(item)))["id"] == item.id
    if conversation.items:
        try:
            ask({"model": "tiny"}, conversation)
        except ApiError as error:
            told(error)


def test_a_large_event_is_read_in_one_go() -> None:
    """Python doesn't look for rubbish while an event of very many values is read: that would hold every stream up."""
    content = ",".join(["[]"] * 50_000)
    frame = '{"type":"conversation.item.create","item":{"content":[' + content + "]}}"
    begun: list[str] = []

    def note(phase: str, _info: dict[str, int]) -> None:
        begun.append(phase)

    gc.callbacks.append(note)
    try:
        event = events.parse(frame)
    finally:
        gc.callbacks.remove(note)
    assert isinstance(event, events.ItemCreate)
    assert len(event.item["content"]) == 50_000
    assert len(begun) < 10  # else one for each 700 values
    assert gc.isenabled()
