"""How a realtime socket ends: each close code with its reason, and nothing that stays behind."""

import json
import socket as sockets
import struct
import time

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from gateway import websocket_protocol
from gateway.realtime.events import MAX_EVENT
from tenants.keys import parse_key
from tests.gateway.realtime.dialling import (
    ENDLESS,
    LONG,
    SECONDS,
    create,
    dial,
    receive,
    send,
    until,
    until_closed,
    until_done,
)
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for


def key_id(raw: str) -> str:
    """Return a key's id."""
    parsed = parse_key(raw)
    assert parsed is not None
    return parsed.key_id


def test_revoked_key_ends_what_runs(stack: Stack, tenant: TenantInTest) -> None:
    """A revoked key's socket is told, its responses end as failed, and it closes with 1008; another key's goes on."""
    raw, other = tenant.key(), tenant.key()
    with dial(stack, other) as bystander, dial(stack, raw) as socket:
        theirs = create(bystander, **ENDLESS)
        ids = {create(socket, **ENDLESS) for _ in range(2)}
        stack.seed(do="revoke", tenant_id=tenant.id, key_id=key_id(raw))
        events, code, reason = until_closed(socket)
        assert (code, reason.split(":")[0]) == (1008, "invalid_api_key")
        told = next(event for event in events if event["type"] == "error")
        assert told["error"]["code"] == "invalid_api_key"
        done = [event["response"] for event in events if event["type"] == "response.done"]
        assert {response["id"] for response in done} == ids
        assert {response["status"] for response in done} == {"failed"}
        assert {response["status_details"]["error"]["code"] for response in done} == {"invalid_api_key"}
        assert events.index(told) < min(events.index(event) for event in events if event["type"] == "response.done")
        send(bystander, type="response.cancel", response_id=theirs)
        assert until_done(bystander)[1]["status"] == "cancelled"
    with pytest.raises(InvalidStatus), dial(stack, raw):
        pass
    records = wait_for(lambda: len(tenant.usage()) == 3 and tenant.usage())
    assert {record["finish_reason"] for record in records} == {"cancelled"}


def test_expired_key_is_found_out(stack: Stack, tenant: TenantInTest) -> None:
    """Nobody tells of a key that expires: the timer finds it, and the idle socket closes with 1008."""
    raw = tenant.key(expires_at=time.time() + 15)
    with dial(stack, raw) as socket:
        _, code, reason = until_closed(socket)
    assert (code, reason.split(":")[0]) == (1008, "invalid_api_key")


def test_signed_out_member_loses_the_socket(stack: Stack, tenant: TenantInTest) -> None:
    """A console session that ends takes its sockets with it."""
    made = stack.seed(do="session", tenant_id=tenant.id, email=f"{tenant.slug}@example.com", role="owner")
    options = {"additional_headers": {"cookie": f"{made['cookie']}={made['session_key']}"}, "subprotocols": None}
    with dial(stack, "", path=f"/v1/realtime?tenant={tenant.slug}", origin=stack.url, **options) as socket:
        stack.seed(do="sign_out", session_key=made["session_key"])
        _, code, reason = until_closed(socket)
    assert (code, reason.split(":")[0]) == (1008, "invalid_api_key")


def test_binary_frame(stack: Stack, tenant: TenantInTest) -> None:
    """Events are text: a binary frame closes with 1003 and says so."""
    with dial(stack, tenant.key()) as socket:
        socket.send(b'{"type": "response.cancel"}')
        events, code, reason = until_closed(socket)
    assert (code, reason.split(":")[0]) == (1003, "binary_frame")
    assert [event["error"]["code"] for event in events] == ["binary_frame"]


def test_text_that_is_no_utf8(stack: Stack, tenant: TenantInTest) -> None:
    """Broken UTF-8 in a text frame closes with 1007, and what ran ends."""
    with dial(stack, tenant.key()) as socket:
        create(socket, **ENDLESS)
        raw_frame(socket, b'{"type": "\xff\xfe"}')
        _, code, _ = until_closed(socket)
    assert code == 1007
    assert wait_for(tenant.usage)[0]["finish_reason"] == "cancelled"


def test_long_event_is_an_error(stack: Stack, tenant: TenantInTest) -> None:
    """An event over the limit of characters is refused by name; the socket goes on."""
    with dial(stack, tenant.key()) as socket:
        socket.send(json.dumps({"type": "response.cancel", "event_id": "x" * MAX_EVENT}))
        assert receive(socket)["error"]["code"] == "event_too_large"
        send(socket, type="response.create", response=LONG | {"max_output_tokens": 2})
        assert until_done(socket)[1]["status"] == "incomplete"


def test_message_over_the_bound(stack: Stack, tenant: TenantInTest) -> None:
    """A message over the protocol's own bound closes with 1009 at its head, be it one frame or many."""
    most = websocket_protocol.MAX_MESSAGE
    with dial(stack, tenant.key()) as socket:
        socket.socket.sendall(head_of(Opcode.TEXT, most + 1))
        assert until_closed(socket)[1] == 1009
    with dial(stack, tenant.key()) as socket:
        for number in range(8):
            opcode = Opcode.CONT if number else Opcode.TEXT
            socket.socket.sendall(Frame(opcode, b"x" * (most // 8), fin=False).serialize(mask=True))
        socket.socket.sendall(head_of(Opcode.CONT, 1))
        assert until_closed(socket)[1] == 1009


def head_of(opcode: Opcode, size: int) -> bytes:
    """Return the head of a frame whose payload never comes."""
    return struct.pack("!BBQ4s", 0x80 | opcode, 0xFF, size, b"mask")


def raw_frame(socket: ClientConnection, data: bytes) -> None:
    """Send a text frame whose bytes nobody checks here."""
    frame = Frame(Opcode.TEXT, data)
    socket.socket.sendall(frame.serialize(mask=True))


def test_client_that_resets(stack: Stack, tenant: TenantInTest) -> None:
    """A connection that is reset in the middle of its responses leaves nothing behind."""
    with dial(stack, tenant.key()) as socket:
        for _ in range(2):
            create(socket, **ENDLESS)
            until(socket, "response.output_text.delta")
        socket.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        socket.socket.close()
    records = wait_for(lambda: len(tenant.usage()) == 2 and tenant.usage())
    assert {record["finish_reason"] for record in records} == {"cancelled"}


def test_many_that_vanish_leave_no_trace(stack: Stack, tenant: TenantInTest) -> None:
    """However clients go, in the middle of responses and before their handshakes' ends: their places are free again."""
    process, port = stack.start_web(REALTIME_SOCKETS="8")
    raw = tenant.key()
    try:
        for number in range(24):
            with sockets.create_connection(("127.0.0.1", port)) as early:
                early.sendall(b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
            with wait_for(lambda: let_in(stack, raw, port)) as socket:
                for _ in range(2):
                    create(socket, **ENDLESS)
                if number % 2:
                    socket.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
                socket.socket.shutdown(sockets.SHUT_RDWR)
        records = wait_for(lambda: len(tenant.usage()) == 48 and tenant.usage())
        assert {record["finish_reason"] for record in records} == {"cancelled"}
        held = [wait_for(lambda: let_in(stack, raw, port)) for _ in range(4)]
        assert let_in(stack, raw, port) is None
        for socket in held:
            socket.close()
    finally:
        process.stop()


def let_in(stack: Stack, raw: str, port: int) -> ClientConnection | None:
    """Return an open socket, if there is room for one."""
    options = {"additional_headers": {"authorization": f"Bearer {raw}"}, "proxy": None, "open_timeout": SECONDS}
    try:
        return connect(f"ws://127.0.0.1:{port}/v1/realtime", legacy=True, **options)  # type: ignore[arg-type]
    except InvalidStatus:
        return None


def test_frames_after_a_close_are_passed_over(stack: Stack, tenant: TenantInTest) -> None:
    """What a client goes on to send once it has been sent away starts nothing."""
    with dial(stack, tenant.key()) as socket:
        socket.send(b"binary")
        for _ in range(20):
            try:
                send(socket, type="response.create", response=LONG | {"max_output_tokens": 1})
            except ConnectionClosed:
                break
        events, code, _ = until_closed(socket)
    assert code == 1003
    assert not [event for event in events if event["type"] == "response.created"]


def test_unknown_path(stack: Stack) -> None:
    """There is a socket at one path alone."""
    with pytest.raises(InvalidStatus) as caught:
        connect(f"ws://127.0.0.1:{stack.port}/v1/elsewhere", proxy=None, open_timeout=SECONDS)
    assert caught.value.response.status_code == 404
