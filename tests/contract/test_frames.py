"""Frames that nobody should send: each is an `error` event or a clean close, and no other socket minds."""

import json
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from tests.contract import bodies, frames
from tests.contract.judge import CODES

RELAXED = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
TURN = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
INTERNAL_ERROR = 1011


@pytest.fixture(scope="module")
def address(target: Any) -> tuple[str, int]:
    """Host and port of the product."""
    place = urlsplit(target.base_url)
    assert place.hostname is not None and place.port is not None
    return place.hostname, place.port


def good_events(model: str) -> list[dict[str, Any]]:
    """Return events that are taken."""
    response = {"model": model, "input": [TURN], "max_output_tokens": 2, "metadata": {"a": "b"}}
    return [
        {"type": "response.create", "event_id": "e", "response": response},
        {"type": "response.cancel", "event_id": "e", "response_id": "resp_0"},
        {"type": "session.prefetch", "event_id": "e", "session": "s"},
    ]


@pytest.mark.parametrize("index", range(3))
@RELAXED
@given(data=st.data())
def test_changed_events(target: Any, stranger_key: str, index: int, data: st.DataObject) -> None:
    """An event with other values or fields is taken, or is an `error` that names what is wrong; the socket goes on."""
    fields = ("response", "response_id", "session", "model", "type", "event_id")
    event = data.draw(bodies.changed(good_events(target.model)[index], fields))
    answers = told(target, stranger_key, bodies.as_bytes(event).decode())
    for answer in answers:
        if answer["type"] == "error":
            assert answer["error"]["code"] in CODES, answer
            assert answer["error"]["type"] != "server_error", answer
        if answer["type"] == "response.done" and answer["response"]["status"] == "failed":
            assert answer["response"]["status_details"]["error"].get("type") != "server_error", answer


@RELAXED
@given(text=st.text(max_size=200))
def test_any_text(target: Any, stranger_key: str, text: str) -> None:
    """Any text that is no event is an `error`."""
    assert any(answer["type"] == "error" for answer in told(target, stranger_key, text))


@RELAXED
@given(pieces=st.lists(st.binary(max_size=60), min_size=1, max_size=4), data=st.data())
def test_any_frames(
    address: tuple[str, int], http: httpx.Client, stranger_key: str, pieces: list[bytes], data: st.DataObject
) -> None:
    """Frames of any kind, in any order, with any bits: the socket goes on, or closes with a code that says why."""
    sent = b""
    for piece in pieces:
        opcode = data.draw(st.integers(0, 15))
        fin, masked = data.draw(st.booleans()), data.draw(st.sampled_from([True, True, True, False]))
        sent += frames.frame(
            opcode, piece, fin=fin, masked=masked, reserved=data.draw(st.sampled_from([0, 0, 0, 4, 7]))
        )
    with frames.handshaken(address, stranger_key) as dialled:
        dialled.sendall(sent + frames.frame(frames.CLOSE, b"\x03\xe8"))
        assert frames.close_code(dialled) != INTERNAL_ERROR
    assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize("payload", [b"\xff", b"\xc0\x80", b'{"type": "\xed\xa0\x80"}', b"\xf0\x9f\x99"])
def test_broken_utf8_closes(address: tuple[str, int], stranger_key: str, payload: bytes) -> None:
    """A text frame that is no UTF-8 closes the socket with 1007, as the protocol has it."""
    with frames.handshaken(address, stranger_key) as dialled:
        dialled.sendall(frames.frame(frames.TEXT, payload))
        assert frames.close_code(dialled) == 1007


def test_a_frame_without_end_closes(address: tuple[str, int], stranger_key: str, http: httpx.Client) -> None:
    """A message that is larger than any event may be closes the socket with 1009 before it is all there."""
    with frames.handshaken(address, stranger_key) as dialled:
        head = frames.frame(frames.TEXT, b"", masked=True)[:1] + bytes([0x80 | 127]) + (1 << 40).to_bytes(8)
        dialled.sendall(head + b"\0\0\0\0")
        assert frames.close_code(dialled) == 1009
    assert http.get("/healthz").status_code == 200


def told(target: Any, key: str, text: str) -> list[dict[str, Any]]:
    """Send one event and then one that is surely refused; return what is told until both are answered."""
    url = str(target.product.serve["ws_url"])
    answers: list[dict[str, Any]] = []
    with connect(url, additional_headers={"authorization": f"Bearer {key}"}, proxy=None, open_timeout=120) as socket:
        socket.send(text)
        socket.send('{"type": "last", "event_id": "last"}')
        num_running, is_last = 0, False
        while not is_last or num_running:
            answer = json.loads(socket.recv(timeout=120))  # raises where the server closes: no event is a reason to
            answers.append(answer)
            num_running += (answer["type"] == "response.created") - (answer["type"] == "response.done")
            is_last = is_last or answer.get("error", {}).get("event_id") == "last"
    return [answer for answer in answers if answer.get("error", {}).get("event_id") != "last"]
