"""The realtime socket through real processes with a real websocket client."""

import json
import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gateway.realtime.consumers import PREFETCHES_A_MINUTE
from tenants.keys import new_key, parse_key
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

HELLO = [{"role": "user", "content": "hello"}]
LONG = {"model": "tiny", "input": HELLO, "max_output_tokens": 1500, "temperature": 0, "ignore_eos": True}
ENDLESS = LONG | {"max_output_tokens": 15_000}  # it is cut off long before its end


@contextmanager
def dial(
    stack: Stack, raw: str, *, path: str = "/v1/realtime", port: int = 0, **options: Any
) -> Iterator[ClientConnection]:
    """Open a socket with a key in a subprotocol and take its `session.created`."""
    options = {"subprotocols": ["realtime", f"openai-insecure-api-key.{raw}"], "proxy": None} | options
    with connect(f"ws://127.0.0.1:{stack.port}{path}", **options) as socket:
        assert receive(socket)["type"] == "session.created"
        yield socket


def receive(socket: ClientConnection) -> dict[str, Any]:
    """Return the next event."""
    return dict(json.loads(socket.recv(timeout=60)))


def send(socket: ClientConnection, **event: Any) -> None:
    """Send an event."""
    socket.send(json.dumps(event))


def until_done(socket: ClientConnection, response_id: str = "") -> tuple[str, dict[str, Any]]:
    """Return the text and the final object of a response; events of other responses are skipped."""
    text = ""
    while True:
        event = receive(socket)
        assert event["event_id"].startswith("event_")
        if event["type"] == "response.output_text.delta" and response_id in ("", event["response_id"]):
            text += event["delta"]
        if event["type"] == "response.done" and response_id in ("", event["response"]["id"]):
            return text, event["response"]


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


def test_several_at_once_and_cancel(stack: Stack, tenant: TenantInTest) -> None:
    """Responses run side by side; cancelling one ends it soon and leaves the other alone."""
    with dial(stack, tenant.key()) as socket:
        ids = []
        for response in (ENDLESS, LONG):
            send(socket, type="response.create", response=response)
            while (event := receive(socket))["type"] != "response.created":
                pass
            ids.append(event["response"]["id"])
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


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "session.update"}, "type"),
        ({"type": 5}, "type"),
        ({}, "type"),
        ({"type": "response.create", "extra": 1}, "extra"),
        ({"type": "response.create"}, "response"),
        ({"type": "response.create", "response": []}, "response"),
        ({"type": "response.create", "response": {"input": HELLO}}, "response.model"),
        ({"type": "response.create", "response": {"model": "tiny"}}, "response.input"),
        ({"type": "response.create", "response": {"model": "tiny", "input": HELLO, "colour": 1}}, "response.colour"),
        ({"type": "response.create", "response": {"model": "tiny", "input": HELLO, "tools": [1]}}, "response.tools"),
        ({"type": "response.create", "response": {"model": "tiny", "input": []}}, "response.input"),
        ({"type": "response.create", "response": LONG | {"temperature": 9}}, "response.temperature"),
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
    "frame", ["", "{", "[]", "null", "[" * 50_000, '{"a": NaN}', b"\x00binary", '{"type": "' + "x" * (1 << 20) + '"}']
)
def test_frames_that_are_no_events(stack: Stack, tenant: TenantInTest, frame: str | bytes) -> None:
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
            connect(f"ws://127.0.0.1:{stack.port}/v1/realtime", subprotocols=subprotocols, proxy=None)
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


def test_revoked_key_ends_new_responses(stack: Stack, tenant: TenantInTest) -> None:
    """A key that is revoked while its socket is open starts nothing more."""
    raw = tenant.key()
    with dial(stack, raw) as socket:
        parsed = parse_key(raw)
        assert parsed is not None
        stack.seed(do="revoke", tenant_id=tenant.id, key_id=parsed.key_id)

        def refused() -> bool:
            send(socket, type="response.create", response=LONG | {"max_output_tokens": 1})
            done = until_done(socket)[1]
            return done["status"] == "failed" and done["status_details"]["error"]["code"] == "invalid_api_key"

        wait_for(refused)


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
            event = receive(socket)
            assert (event["type"], event["session"]) == ("session.prefetched", fields.get("session", "chat/1"))
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
