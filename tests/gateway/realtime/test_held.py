"""What a socket keeps is counted as it lies in memory, and bounded as such."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from gateway.api.errors import BadRequest
from gateway.realtime import conversation as conversations
from gateway.realtime import session as sessions
from gateway.realtime.conversation import Conversation
from gateway.realtime.held import held_bytes
from gateway.realtime.items import read_item
from gateway.realtime.room import Room
from gateway.realtime.session import Session
from tests.gateway.realtime.dialling import HELLO, dial, send, until, until_done
from tests.gateway.realtime.test_conversation import fill
from tests.gateway.wire.stack import Stack, TenantInTest

MANY = {
    "empty objects": json.dumps([{}] * 20_000),
    "numbers": json.dumps([number * 1.5 for number in range(20_000)]),
    "short texts": json.dumps([f"text {number}" for number in range(20_000)]),
    "names": json.dumps({f"name {number}": [number] for number in range(20_000)}),
    "wide characters": json.dumps("🙂" * 200_000, ensure_ascii=False),
}


@pytest.mark.parametrize("kind", MANY)
def test_no_less_is_counted_than_is_held(kind: str) -> None:
    """Whatever JSON is made of, what is counted is at least nine tenths of what Python has taken for it."""
    text = MANY[kind].encode()
    tracemalloc.start()
    try:
        value = msgspec.json.decode(text)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held_bytes(value) >= 0.9 * taken


def test_items_of_many_parts() -> None:
    """An item counts with its parts, and a wide character for what it takes."""
    plain = held_bytes(read_item({"role": "user", "content": "x" * 1000}, "item"))
    wide = held_bytes(read_item({"role": "user", "content": "🙂" * 1000}, "item"))
    parts = held_bytes(read_item({"role": "user", "content": [{"type": "input_text", "text": "x"}] * 1000}, "item"))
    assert plain >= 1000
    assert wide >= 4000
    assert parts >= 30_000


def test_small_items_are_not_free() -> None:
    """Items without a text are counted: as many as a conversation may have take room of the tenant's."""
    room = Room(tenant=100_000)
    one = Conversation(room.share("a"))
    with pytest.raises(BadRequest) as caught:
        fill(one, read_item({"role": "user", "content": ""}, "item"))
    assert caught.value.error_code == "conversation_full"
    for item in one.items:
        one.remove(str(item.id), field="item_id")
    assert room.take("a", 100_000)


def test_a_session_of_many_values() -> None:
    """A session that is short as JSON and large in memory is refused by name, and leaves all as it was."""
    schema = {"type": "object", "enum": [{} for _ in range(80_000)]}
    tool = {"type": "function", "name": "f", "parameters": schema}
    room = Room()
    session = Session("tiny", room.share("a"))
    with pytest.raises(BadRequest) as caught:
        session.update({"tools": [tool]})
    assert caught.value.param is not None
    assert caught.value.param.startswith("session")
    assert session.fields_of({}) == {"model": "tiny"}


def test_a_sessions_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is named, with how much it would have been."""
    monkeypatch.setattr(sessions, "MAX_HELD", 1000)
    session = Session("tiny", Room().share("a"))
    with pytest.raises(BadRequest, match="of at most 1000") as caught:
        session.update({"instructions": "x" * 2000})
    assert caught.value.error_code == "session_full"


def test_errors_name_the_limit(stack: Stack, tenant: TenantInTest) -> None:
    """A socket that holds all it may is told so, goes on, and has room again for what it deletes."""
    with dial(stack, tenant.key(), path="/v1/realtime?model=tiny") as socket:
        content = [{"type": "input_text", "text": "🙂" * 200_000}]  # four bytes each
        large: dict[str, Any] = {"type": "message", "role": "user", "content": content}
        for number in range(5):
            send(socket, type="conversation.item.create", item={**large, "id": str(number)})
            until(socket, "conversation.item.done")
        send(socket, type="conversation.item.create", item={**large, "id": "5"}, event_id="mine")
        error = until(socket, "error")["error"]
        assert (error["code"], error["param"], error["event_id"]) == ("conversation_full", "item", "mine")
        assert str(conversations.MAX_BYTES) in error["message"]
        send(socket, type="conversation.item.delete", item_id="0")
        until(socket, "conversation.item.deleted")
        send(socket, type="conversation.item.create", item={**large, "id": "5"})
        until(socket, "conversation.item.done")


def test_a_response_holds_its_fields_while_it_runs(stack: Stack, tenant: TenantInTest) -> None:
    """Fields of responses that run count too, and are given back: one after another there is always room."""
    instructions = "x" * 4_000_000
    with dial(stack, tenant.key(), path="/v1/realtime?model=tiny") as socket:
        for _ in range(12):
            send(socket, type="response.create", response={"input": HELLO, "instructions": instructions})
            assert until_done(socket)[1]["status_details"]["error"]["code"] == "context_length_exceeded"
