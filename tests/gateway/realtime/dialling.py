"""A client of the realtime socket for tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.gateway.wire.stack import Stack

HELLO = [{"role": "user", "content": "hello"}]
LONG = {"model": "tiny", "input": HELLO, "max_output_tokens": 1500, "temperature": 0, "ignore_eos": True}
ENDLESS = LONG | {"max_output_tokens": 30_000}  # it is cut off long before its end
SECONDS = 60.0


@contextmanager
def dial(
    stack: Stack, raw: str, *, path: str = "/v1/realtime", port: int = 0, **options: Any
) -> Iterator[ClientConnection]:
    """Open a socket with a key in a subprotocol and take its `session.created`."""
    default = {"subprotocols": ["realtime", f"openai-insecure-api-key.{raw}"], "proxy": None, "open_timeout": SECONDS}
    options = default | options
    with connect(f"ws://127.0.0.1:{port or stack.port}{path}", **options) as socket:
        assert receive(socket)["type"] == "session.created"
        yield socket


def receive(socket: ClientConnection) -> dict[str, Any]:
    """Return the next event."""
    return dict(json.loads(socket.recv(timeout=SECONDS)))


def until(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """Return the next event of a kind; others are skipped, but for an error, which fails the test."""
    while (event := receive(socket))["type"] != kind:
        assert event["type"] != "error", event
    return event


def send(socket: ClientConnection, **event: Any) -> None:
    """Send an event."""
    socket.send(json.dumps(event))


def create(socket: ClientConnection, **response: Any) -> str:
    """Ask for a response and return its id."""
    send(socket, type="response.create", response=response)
    return str(until(socket, "response.created")["response"]["id"])


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


def until_closed(socket: ClientConnection) -> tuple[list[dict[str, Any]], int, str]:
    """Return the events up to the socket's end, and the code and the reason of its close frame."""
    events = []
    while True:
        try:
            events.append(receive(socket))
        except ConnectionClosed:
            return events, socket.close_code or 0, socket.close_reason or ""
