"""The realtime socket through real processes with a real websocket client."""

import json
import socket as sockets
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gateway.realtime.consumers import MAX_RESPONSES, PREFETCHES_A_MINUTE
from tenants.keys import new_key
from tests.gateway.realtime.dialling import (
    ENDLESS,
    HELLO,
    LONG,
    SECONDS,
    create,
    dial,
    receive,
    send,
    until,
    until_done,
)
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for


def test_response(stack: Stack, tenant: TenantInTest) -> None:
    """A response is created, its text comes in deltas, its end has usage; the text is that of the HTTP surface."""
    raw = tenant.key()
    with dial(stack, raw) as socket:
        assert socket.subprotocol == "realtime"
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 20})
        created = receive(socket)
        assert created["type"] == "response.created"
        assert created["response"]["status"] == "in_progress"
        text, done = until_done(socket)
    assert done["id"] == created["response"]["id"]
    assert done["status"] == "incomplete"
    assert done["status_details"]["reason"] == "max_output_tokens"
    assert done["usage"]["output_tokens"] == 20
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + 20
    assert done["output"][0]["content"][0]["text"] == text
    answer = stack.openai(raw).chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=20, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].message.content == text


@pytest.mark.parametrize(
    "response",
    [
        {"messages": HELLO},
        {"input": "hello"},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}]},
    ],
)
def test_forms_of_input(stack: Stack, tenant: TenantInTest, response: dict[str, Any]) -> None:
    """The forms of input say the same; the model may come with the address."""
    with dial(stack, tenant.key(), path="/v1/realtime?model=tiny") as socket:
        send(socket, type="response.create", response=response | {"max_output_tokens": 3, "ignore_eos": True})
        _, done = until_done(socket)
    assert done["usage"] == {
        "input_tokens": done["usage"]["input_tokens"],
        "output_tokens": 3,
        "total_tokens": done["usage"]["input_tokens"] + 3,
        "input_token_details": {"cached_tokens": done["usage"]["input_token_details"]["cached_tokens"]},
    }


@pytest.mark.parametrize("field", ["max_output_tokens", "max_tokens"])
def test_output_above_the_policy_fails_the_response(stack: Stack, field: str) -> None:
    """More output than the policy allows ends the response as failed, and names the field as it was written."""
    with dial(stack, stack.tenant(max_output=8).key()) as socket:
        send(socket, type="response.create", response={"model": "tiny", "input": HELLO, field: 9})
        _, done = until_done(socket)
    assert done["status"] == "failed"
    assert done["status_details"]["error"]["param"] == f"response.{field}"
    assert "at most 8" in done["status_details"]["error"]["message"]


def test_order_of_events(stack: Stack, tenant: TenantInTest) -> None:
    """A response is told as OpenAI tells it: its item opens, grows and closes, and all of it adds up."""
    with dial(stack, tenant.key()) as socket:
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 8})
        events = [receive(socket)]
        while events[-1]["type"] != "response.done":
            events.append(receive(socket))
        events.append(receive(socket))
    kinds = [event["type"] for event in events if event["type"] != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
        "rate_limits.updated",
    ]
    by_kind = {event["type"]: event for event in events}
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    item = by_kind["response.output_item.done"]["item"]
    assert by_kind["response.output_text.done"]["text"] == text == item["content"][0]["text"]
    assert by_kind["response.done"]["response"]["output"] == [item]
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert by_kind["response.output_item.added"]["item"]["content"] == []
    assert (item["status"], item["role"]) == ("incomplete", "assistant")


def test_several_at_once_and_cancel(stack: Stack, tenant: TenantInTest) -> None:
    """Responses run side by side; cancelling one ends it soon and leaves the other alone."""
    with dial(stack, tenant.key()) as socket:
        ids = [create(socket, **response) for response in (ENDLESS, LONG)]
        send(socket, type="response.cancel", response_id=ids[0])
        done = {}
        while len(done) < 2:
            event = receive(socket)
            if event["type"] == "response.done":
                done[event["response"]["id"]] = event["response"]
    assert done[ids[0]]["status"] == "cancelled"
    assert done[ids[1]]["status"] == "incomplete"
    assert done[ids[1]]["usage"]["output_tokens"] == 1500
    records = wait_for(lambda: len(tenant.usage()) == 2 and tenant.usage())
    assert sorted(record["finish_reason"] for record in records) == ["cancelled", "length"]


def test_cancel_of_all(stack: Stack, tenant: TenantInTest) -> None:
    """A cancel without an id ends every response; where none runs it is refused."""
    with dial(stack, tenant.key()) as socket:
        ids = {create(socket, **ENDLESS) for _ in range(3)}
        send(socket, type="response.cancel")
        done = [until_done(socket)[1] for _ in range(3)]
        assert {response["id"] for response in done} == ids
        assert {response["status"] for response in done} == {"cancelled"}
        until(socket, "rate_limits.updated")
        send(socket, type="response.cancel", event_id="again")
        while (event := receive(socket))["type"] == "rate_limits.updated":
            pass
        assert (event["error"]["code"], event["error"]["event_id"]) == ("response_cancel_not_active", "again")


def test_responses_of_one_socket_are_bounded(stack: Stack, tenant: TenantInTest) -> None:
    """One more than a socket may have at once is refused; when some have ended there is room again."""
    with dial(stack, tenant.key()) as socket:
        for _ in range(MAX_RESPONSES):
            send(socket, type="response.create", response=ENDLESS)
        send(socket, type="response.create", event_id="more", response=ENDLESS)
        while (event := receive(socket))["type"] != "error":
            pass
        assert (event["error"]["code"], event["error"]["event_id"]) == ("too_many_responses", "more")
        send(socket, type="response.cancel")
        for _ in range(MAX_RESPONSES):
            until_done(socket)
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 2})
        assert until_done(socket)[1]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "session.destroy"}, "type"),
        ({"type": "session.update"}, "session"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "type"),
        ({"type": 5}, "type"),
        ({}, "type"),
        ({"type": "response.create", "extra": 1}, "extra"),
        ({"type": "response.create"}, "response.model"),
        ({"type": "response.create", "response": []}, "response"),
        ({"type": "response.create", "response": {"input": HELLO}}, "response.model"),
        ({"type": "response.create", "response": {"model": "tiny"}}, "response.input"),
        ({"type": "response.create", "response": {"model": "tiny", "input": HELLO, "colour": 1}}, "response.colour"),
        (
            {"type": "response.create", "response": {"model": "tiny", "input": HELLO, "tools": [1]}},
            "response.tools[0]",
        ),
        ({"type": "response.create", "response": {"model": "tiny", "input": []}}, "response.input"),
        ({"type": "response.create", "response": LONG | {"temperature": 9}}, "response.temperature"),
        ({"type": "response.create", "response": LONG | {"input": [{"role": "user"}]}}, "response.input[0].content"),
        ({"type": "response.create", "response": LONG | {"input": [{"type": "item_reference"}]}}, "response.input[0]"),
        ({"type": "response.create", "response": LONG | {"input": [{"type": "mcp_call"}]}}, "response.input[0].type"),
        ({"type": "response.create", "response": LONG | {"messages": HELLO}}, "response.input"),
        ({"type": "response.create", "response": LONG | {"audio": {}}}, "response.audio"),
        (
            {"type": "response.create", "response": LONG | {"output_modalities": ["audio"]}},
            "response.output_modalities",
        ),
        ({"type": "response.create", "response": LONG | {"max_output_tokens": 0}}, "response.max_output_tokens"),
        ({"type": "response.create", "response": LONG | {"n": 2}}, "response.n"),
        ({"type": "response.create", "response": LONG | {"use_beam_search": True}}, "response.use_beam_search"),
        ({"type": "response.cancel", "response_id": "resp_none"}, "response_id"),
        ({"type": "response.cancel", "response_id": 7}, "response_id"),
    ],
)
def test_wrong_event_is_named(stack: Stack, tenant: TenantInTest, event: dict[str, Any], param: str) -> None:
    """A malformed event is an `error` that names the field and the client's event; the socket goes on."""
    with dial(stack, tenant.key()) as socket:
        send(socket, event_id="mine", **event)
        error = receive(socket)
        assert error["type"] == "error"
        assert error["error"]["event_id"] == "mine"
        assert error["error"]["param"] == param
        assert error["error"]["message"]
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 2})
        assert until_done(socket)[1]["usage"]["output_tokens"] == 2


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 50_000,
        '{"type":' * 5000,
        '{"a": NaN}',
        '{"type": "response.create", "response": {"temperature": 1e999}}',
        '{"type": "response.create", "response": {"seed": ' + "9" * 5000 + "}}",
        '{"type": "\\ud800"}',
        '{"type": "' + "x" * (1 << 20) + '"}',
        '{"event_id": "' + "x" * 5000 + '", "type": "response.cancel"}',
    ],
    ids=[
        *("empty", "cut off", "list", "null", "deep list", "deep object", "nan", "infinite", "huge number"),
        *("lone surrogate", "long type", "long id"),
    ],
)
def test_frames_that_are_no_events(stack: Stack, tenant: TenantInTest, frame: str) -> None:
    """Whatever a frame holds, the answer is an `error`, and the socket goes on."""
    with dial(stack, tenant.key()) as socket:
        for _ in range(3):
            socket.send(frame)
            assert receive(socket)["type"] == "error"


def test_failures_end_the_response(stack: Stack, tenant: TenantInTest) -> None:
    """An unknown model, a model without chat form and too long an input are failed responses that say why."""
    with dial(stack, tenant.key()) as socket:
        for changes, code in (
            ({"model": "nothing"}, "model_not_found"),
            ({"model": "plain"}, "no_chat_template"),
            ({"input": "hello " * 40_000}, "context_length_exceeded"),
        ):
            send(socket, type="response.create", response=LONG | changes)
            _, done = until_done(socket)
            assert done["status"] == "failed"
            assert done["status_details"]["error"]["code"] == code


def test_rates_hold_here_too(stack: Stack) -> None:
    """A socket spends the same limits as HTTP."""
    with dial(stack, stack.tenant(rpm=1).key()) as socket:
        ends = []
        for _ in range(2):
            send(socket, type="response.create", response=LONG | {"max_output_tokens": 2})
            ends.append(until_done(socket)[1])
    assert ends[0]["status"] == "incomplete"
    assert ends[1]["status_details"]["error"]["code"] == "rate_limit_exceeded"


def test_bearer_header(stack: Stack, tenant: TenantInTest) -> None:
    """A client that can set headers sends the key in one."""
    headers = {"authorization": f"Bearer {tenant.key()}"}
    with dial(stack, "", subprotocols=None, additional_headers=headers) as socket:
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 2})
        assert until_done(socket)[1]["status"] == "incomplete"


def test_without_a_key(stack: Stack) -> None:
    """Nobody gets a socket without a key or with a wrong one."""
    for subprotocols in (
        None,
        ["realtime", "openai-insecure-api-key.x"],
        [f"openai-insecure-api-key.{new_key('live')}"],
    ):
        with pytest.raises(InvalidStatus) as caught:
            connect(
                f"ws://127.0.0.1:{stack.port}/v1/realtime", subprotocols=subprotocols, proxy=None, open_timeout=SECONDS
            )
        assert caught.value.response.status_code == 401
        assert json.loads(caught.value.response.body)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("role", "origin", "status"),
    [
        ("owner", "own", 101),
        ("developer", "own", 101),
        ("viewer", "own", 403),
        ("", "own", 403),
        ("developer", "http://evil.example", 403),
        ("developer", "", 403),
    ],
)
def test_console_session(stack: Stack, tenant: TenantInTest, role: str, origin: str, status: int) -> None:
    """A member who may make keys uses the console's session, on the console's own pages alone."""
    email = f"{tenant.slug}@example.com"
    made = stack.seed(do="session", tenant_id=tenant.id, email=email, role=role)
    options: dict[str, Any] = {
        "subprotocols": None,
        "additional_headers": {"cookie": f"{made['cookie']}={made['session_key']}"},
        "origin": {"own": stack.url, "": None}.get(origin, origin),
    }
    path = f"/v1/realtime?tenant={tenant.slug}"
    if status == 101:
        with dial(stack, "", path=path, **options) as socket:
            send(socket, type="response.create", response=LONG | {"max_output_tokens": 2})
            assert until_done(socket)[1]["status"] == "incomplete"
        assert wait_for(tenant.usage)[0]["key_id"] == ""
    else:
        with pytest.raises(InvalidStatus) as caught, dial(stack, "", path=path, **options):
            pass
        assert caught.value.response.status_code == status


def test_session_of_another_tenant(stack: Stack, tenant: TenantInTest) -> None:
    """A member of one tenant can't spend another's limits."""
    made = stack.seed(do="session", tenant_id=tenant.id, email=f"{tenant.slug}@example.com", role="owner")
    other = stack.tenant()
    options = {"additional_headers": {"cookie": f"{made['cookie']}={made['session_key']}"}, "subprotocols": None}
    path = f"/v1/realtime?tenant={other.slug}"
    with pytest.raises(InvalidStatus) as caught, dial(stack, "", path=path, origin=stack.url, **options):
        pass
    assert caught.value.response.status_code == 403


def test_client_that_vanishes(stack: Stack, tenant: TenantInTest) -> None:
    """A socket that ends without a closing handshake cancels its responses."""
    with dial(stack, tenant.key()) as socket:
        for _ in range(3):
            send(socket, type="response.create", response=ENDLESS)
        writing: set[str] = set()
        while len(writing) < 3:  # the engine has all of them
            event = receive(socket)
            if event["type"] == "response.output_text.delta":
                writing.add(event["response_id"])
        socket.socket.shutdown(sockets.SHUT_RDWR)
    records = wait_for(lambda: len(tenant.usage()) == 3 and tenant.usage())
    assert {record["finish_reason"] for record in records} == {"cancelled"}


def test_a_session_is_brought_up_before_its_next_turn(stack: Stack, tenant: TenantInTest) -> None:
    """It may be asked for at any time, known or not, with a model or without; the turn then goes on as ever."""
    with dial(stack, tenant.key()) as socket:
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 4, "session_id": "chat/1"})
        until_done(socket)
        for fields in ({}, {"model": "tiny"}, {"session": "never seen"}):
            send(socket, **({"type": "session.prefetch", "session": "chat/1"} | fields))
            assert until(socket, "session.prefetched")["session"] == fields.get("session", "chat/1")
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 4, "session_id": "chat/1"})
        _, done = until_done(socket)
        assert done["usage"]["output_tokens"] == 4
    with stack.http(tenant.key()) as client:
        assert client.get("/v1/sessions/chat%2F1").json()["num_turns"] == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "session"),
        ({"session": ""}, "session"),
        ({"session": 5}, "session"),
        ({"session": "a\nb"}, "session"),
        ({"session": "x" * 257}, "session"),
        ({"session": "chat", "model": 7}, "model"),
        ({"session": "chat", "session_id": "chat"}, "session_id"),
    ],
)
def test_wrong_prefetches_are_refused(stack: Stack, tenant: TenantInTest, fields: dict[str, Any], param: str) -> None:
    """The error names the field and the client's event; the socket goes on."""
    with dial(stack, tenant.key()) as socket:
        send(socket, type="session.prefetch", event_id="mine", **fields)
        error = receive(socket)["error"]
        assert (error["param"], error["event_id"]) == (param, "mine")
        send(socket, type="session.prefetch", session="chat")
        assert receive(socket)["type"] == "session.prefetched"


def test_a_model_that_the_key_may_not_use_is_not_prefetched(stack: Stack, tenant: TenantInTest) -> None:
    """It is answered as a model that does not exist."""
    with dial(stack, tenant.key(models=["plain"])) as socket:
        send(socket, type="session.prefetch", session="chat", model="tiny")
        assert receive(socket)["error"]["code"] == "model_not_found"


def test_prefetches_are_bounded(stack: Stack, tenant: TenantInTest) -> None:
    """One a key is too many: the socket says so and goes on."""
    with dial(stack, tenant.key()) as socket:
        for _ in range(PREFETCHES_A_MINUTE * 2):
            send(socket, type="session.prefetch", session="chat")
        events = [receive(socket) for _ in range(PREFETCHES_A_MINUTE * 2)]
        refusals = [event["error"]["code"] for event in events if event["type"] == "error"]
        assert set(refusals) == {"too_many_prefetches"}
        assert PREFETCHES_A_MINUTE <= len(events) - len(refusals) < len(events)
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 2})
        _, done = until_done(socket)
        assert done["status"] == "incomplete"


def test_wrong_sessions_of_a_response_are_named(stack: Stack, tenant: TenantInTest) -> None:
    """The same rules as over HTTP, with the response's own paths."""
    with dial(stack, tenant.key()) as socket:
        for fields, param in (
            ({"session_id": ""}, "response.session_id"),
            ({"prompt_cache_key": "a\tb"}, "response.prompt_cache_key"),
            ({"session_ttl": 600}, "response.session_ttl"),
            ({"session_id": "chat", "session_ttl": 59}, "response.session_ttl"),
        ):
            send(socket, type="response.create", response=LONG | fields)
            error = receive(socket)["error"]
            assert error["param"] == param
            assert param in error["message"]
