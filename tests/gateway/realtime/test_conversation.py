"""The conversation that a socket keeps, and the session's defaults."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import BadRequest
from gateway.realtime import conversation as module
from gateway.realtime.conversation import Conversation
from gateway.realtime.held import held_bytes
from gateway.realtime.items import Item, MessageItem, read_item
from gateway.realtime.room import Room
from gateway.realtime.session import MAX_BYTES, Session
from tests.gateway.realtime.dialling import HELLO, create, dial, receive, send, until, until_done
from tests.gateway.wire.stack import Stack, TenantInTest

SHORT = {"model": "tiny", "temperature": 0, "ignore_eos": True, "max_output_tokens": 6}


def empty() -> Conversation:
    """Return a conversation with room."""
    return Conversation(Room().share("a"))


def message(text: str, name: str | None = None) -> Item:
    """Return a user's message."""
    return MessageItem(role="user", content=text, id=name)


def fill(conversation: Conversation, item: Item) -> None:
    """Add an item over and over, as often as a conversation has items. Raises BadRequest where there is no room."""
    for _ in range(module.MAX_ITEMS):
        conversation.add(item)


def names(conversation: Conversation) -> list[str | None]:
    """Return the ids in order."""
    return [item.id for item in conversation.items]


def test_places() -> None:
    """An item goes to the end, to the beginning, or behind another one; the one before it is told."""
    conversation = empty()
    assert conversation.add(message("b", "b"))[1] is None
    assert conversation.add(message("d", "d"))[1] == "b"
    assert conversation.add(message("a", "a"), "root")[1] is None
    assert conversation.add(message("c", "c"), "b")[1] == "b"
    assert names(conversation) == ["a", "b", "c", "d"]
    conversation.remove("b", field="item_id")
    assert names(conversation) == ["a", "c", "d"]
    assert conversation.last_id == "d"


def test_wrong_places_change_nothing() -> None:
    """A taken id, an unknown neighbour and an unknown item are refused by name."""
    conversation = empty()
    conversation.add(message("a", "a"))
    for call, param in (
        (lambda: conversation.add(message("b", "a")), "item.id"),
        (lambda: conversation.add(message("b", "b"), "gone"), "previous_item_id"),
        (lambda: conversation.remove("gone", field="item_id"), "item_id"),
        (lambda: conversation.get("gone", field="item_id"), "item_id"),
    ):
        with pytest.raises(BadRequest) as caught:
            call()
        assert caught.value.param == param
    assert names(conversation) == ["a"]


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items and their memory are bounded; what is deleted makes room."""
    monkeypatch.setattr(module, "MAX_ITEMS", 3)
    monkeypatch.setattr(module, "MAX_BYTES", held_bytes(message("12345", "a")) * 2 + held_bytes(message("", "a")))
    conversation = empty()
    conversation.add(message("12345", "a"))
    with pytest.raises(BadRequest, match=f"of at most {module.MAX_BYTES}") as caught:
        conversation.add(message("1" * module.MAX_BYTES, "b"))
    assert caught.value.error_code == "conversation_full"
    conversation.add(message("12345", "b"))
    conversation.remove("a", field="item_id")
    conversation.add(message("1", "c"))
    conversation.add(message("1", "d"))
    with pytest.raises(BadRequest, match="3 items"):
        conversation.add(message("", "e"))


def test_empty_parts_take_room() -> None:
    """A message of very many parts without a text can't take memory that nobody counts."""
    parts = [{"type": "input_text", "text": ""}] * 1000
    conversation = empty()
    item = read_item({"role": "user", "content": parts}, "item")
    with pytest.raises(BadRequest) as caught:
        fill(conversation, item)
    assert caught.value.error_code == "conversation_full"


def test_room_of_a_process_and_of_a_tenant() -> None:
    """Sockets of one tenant share a bound, all of them another; what is deleted or left goes back."""
    bare = held_bytes(message("", "1"))
    room = Room(process=30 + 3 * bare, tenant=20 + 2 * bare)
    one, two = Conversation(room.share("a")), Conversation(share := room.share("a"))
    other = Conversation(room.share("b"))
    one.add(message("x" * 12, "1"))
    two.add(message("x" * 8, "2"))
    for conversation, size in ((one, 1), (two, 1), (other, 11 + bare)):
        with pytest.raises(BadRequest) as caught:
            conversation.add(message("x" * size, "3"))
        assert caught.value.error_code == "conversation_full"
    other.add(message("x" * 10, "3"))
    one.remove("1", field="item_id")
    two.add(message("x" * 12, "4"))
    share.close()
    one.add(message("x" * (20 + bare), "5"))


def test_a_session_takes_room_too() -> None:
    """What it is set to counts by what it is now, not by all that it has been."""
    room = Room(tenant=900)
    session = Session("tiny", room.share("a"))
    for _ in range(5):
        session.update({"instructions": "x" * 300})
    with pytest.raises(BadRequest, match="sockets together"):
        Session("tiny", room.share("a")).update({"instructions": "x" * 100})


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 9)), max_size=40))
def test_order_is_that_of_a_list(steps: list[tuple[int, int]]) -> None:
    """Whatever is added and removed where, the items are those of a plain list."""
    conversation, plain = empty(), []  # type: ignore[var-annotated]
    for number, place in steps:
        name = str(number)
        if name in plain:
            plain.remove(name)
            conversation.remove(name, field="item_id")
            continue
        after = {-2: None, -1: "root"}.get(place, str(place))
        if after not in (None, "root", *plain):
            continue
        plain.insert(len(plain) if after is None else 0 if after == "root" else plain.index(after) + 1, name)
        conversation.add(message(name, name), after)
    assert names(conversation) == plain


def test_session_takes_all_or_nothing() -> None:
    """A wrong field leaves the session as it was; null clears one; what belongs to a response is refused."""
    session = Session("tiny", Room().share("a"))
    session.update({"type": "realtime", "instructions": "Be brief.", "temperature": 0.5, "max_output_tokens": 9})
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"instructions": "x", "temperature": 9}, "session.temperature"),
        ({"type": "transcription"}, "session.type"),
        ({"input": "hello"}, "session.input"),
        ({"conversation": "none"}, "session.conversation"),
        ({"audio": {"output": {"voice": "alloy"}}}, "session.audio"),
        ({"turn_detection": {"type": "server_vad"}}, "session.turn_detection"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "session.tools[0].name"),
        ({"instructions": "x" * MAX_BYTES}, "session"),
    ]
    for changes, param in wrong:
        with pytest.raises(BadRequest) as caught:
            session.update(changes)
        assert caught.value.param == param
    assert session.fields_of({}) == {
        "model": "tiny",
        "instructions": "Be brief.",
        "temperature": 0.5,
        "max_output_tokens": 9,
    }
    session.update({"temperature": None, "instructions": ""})
    assert session.fields_of({"max_output_tokens": 3}) == {"model": "tiny", "instructions": "", "max_output_tokens": 3}


def test_session_may_come_back_as_it_was_told() -> None:
    """What `session.created` shows can be sent back as an update."""
    session = Session("tiny", Room().share("a"))
    session.update(session.object())
    assert session.object()["id"] == session.id


def test_turns_of_a_conversation(stack: Stack, tenant: TenantInTest) -> None:
    """Items and responses without an input make a conversation: the same answers as over HTTP with all of it."""
    raw = tenant.key()
    turns: list[dict[str, str]] = []
    with dial(stack, raw, path="/v1/realtime?model=tiny") as socket, stack.http(raw) as client:
        send(socket, type="session.update", session={"temperature": 0, "ignore_eos": True, "max_output_tokens": 6})
        assert until(socket, "session.updated")["session"]["max_output_tokens"] == 6
        for question in ("hello", "and then?", "what else?"):
            turns.append({"role": "user", "content": question})
            content = [{"type": "input_text", "text": question}]
            item = {"type": "message", "role": "user", "content": content}
            send(socket, type="conversation.item.create", item=item)
            added, done = until(socket, "conversation.item.added"), receive(socket)
            assert done["type"] == "conversation.item.done"
            assert added["item"]["content"] == done["item"]["content"] == content
            send(socket, type="response.create")
            text, response = until_done(socket)
            until(socket, "rate_limits.updated")
            body = {"model": "tiny", "messages": turns, "temperature": 0, "ignore_eos": True, "max_tokens": 6}
            answer = client.post("/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == text
            assert answer["usage"]["prompt_tokens"] == response["usage"]["input_tokens"]
            assert response["conversation_id"].startswith("conv_")
            turns.append({"role": "assistant", "content": text})
        send(socket, type="conversation.item.retrieve", item_id=response["output"][0]["id"])
        assert until(socket, "conversation.item.retrieved")["item"] == response["output"][0]
        send(socket, type="conversation.item.delete", item_id=response["output"][0]["id"])
        assert until(socket, "conversation.item.deleted")["item_id"] == response["output"][0]["id"]
        send(socket, type="conversation.item.retrieve", event_id="gone", item_id=response["output"][0]["id"])
        error = receive(socket)["error"]
        assert (error["code"], error["param"], error["event_id"]) == ("item_not_found", "item_id", "gone")


def test_out_of_the_conversation(stack: Stack, tenant: TenantInTest) -> None:
    """A response that doesn't join leaves the conversation as it is, cancelled ones leave what they had said."""
    with dial(stack, tenant.key()) as socket:
        send(socket, type="response.create", response=SHORT | {"input": HELLO, "conversation": "none"})
        assert until_done(socket)[1]["conversation_id"] is None
        send(socket, type="response.create", response=SHORT, event_id="empty")
        while (event := receive(socket))["type"] == "rate_limits.updated":
            pass
        assert event["error"]["param"] == "response.input"
        cut = create(socket, **SHORT | {"input": HELLO, "max_output_tokens": 15_000})
        until(socket, "response.output_text.delta")
        send(socket, type="response.cancel", response_id=cut)
        text, done = until_done(socket)
        assert done["status"] == "cancelled"
        send(socket, type="conversation.item.retrieve", item_id=done["output"][0]["id"])
        item = until(socket, "conversation.item.retrieved")["item"]
        assert (item["status"], item["content"][0]["text"].endswith(text)) == ("incomplete", True)


def test_session_of_a_response_can_be_overridden(stack: Stack, tenant: TenantInTest) -> None:
    """What a response says itself counts more than what the session says."""
    with dial(stack, tenant.key()) as socket:
        send(socket, type="session.update", session=SHORT | {"instructions": "Be brief."})
        until(socket, "session.updated")
        send(socket, type="response.create", response={"input": HELLO})
        first = until_done(socket)[1]
        send(socket, type="response.create", response={"input": HELLO, "instructions": "", "max_output_tokens": 2})
        second = until_done(socket)[1]
    assert (first["usage"]["output_tokens"], second["usage"]["output_tokens"]) == (6, 2)
    assert first["usage"]["input_tokens"] > second["usage"]["input_tokens"]


def test_items_of_every_kind_are_shown_as_they_came() -> None:
    """Calls and their outputs keep their ids; a text that came as a string is shown as a part."""
    call = read_item({"type": "function_call", "id": "i", "name": "f", "arguments": "{}", "call_id": "c"}, "item")
    output = read_item({"type": "function_call_output", "call_id": "c", "output": "5"}, "item")
    conversation = empty()
    for item in (call, output):
        conversation.add(item)
    assert names(conversation)[0] == "i"
    assert str(names(conversation)[1]).startswith("item_")
