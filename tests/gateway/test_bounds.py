"""What a caller without a key may cost: bounds on the head of a request and on bodies that Django reads."""

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from gateway import bodies, http_protocol
from tests.gateway.wire.stack import Stack

PATIENCE_SECONDS = 60
LINE = b"GET /healthz HTTP/1.1\r\n"


def _answer(stack: Stack, pieces: Iterator[bytes] | list[bytes]) -> bytes:
    """Send the pieces until the server has had enough, and return what it says up to its close."""
    with socket.create_connection(("127.0.0.1", stack.port), timeout=PATIENCE_SECONDS) as dialled:
        said: list[bytes] = []
        reader = threading.Thread(target=_read, args=(dialled, said), daemon=True)
        reader.start()
        try:
            for piece in pieces:
                dialled.sendall(piece)
        except OSError:
            pass  # cut off, which some tests are about
        reader.join(PATIENCE_SECONDS)
        assert not reader.is_alive(), "the server keeps the connection"
    return b"".join(said)


def _read(dialled: socket.socket, said: list[bytes]) -> None:
    try:
        while piece := dialled.recv(65536):
            said.append(piece)
    except OSError:
        pass


def _flood(start: bytes, megabytes: int = 64) -> Iterator[bytes]:
    yield start
    for _ in range(megabytes):
        yield b"a" * (1 << 20)


@pytest.mark.parametrize(
    "start",
    [LINE + b"X-Long: ", LINE + b"X", b"GET /", b"GET /healthz?", LINE + b"Host: a\r\nCookie: a="],
    ids=["value", "name", "path", "query", "cookie"],
)
def test_an_endless_head_is_cut_off(stack: Stack, start: bytes) -> None:
    """It ends in a refusal, and meanwhile the process answers others at once."""
    with httpx.Client(base_url=stack.url, timeout=PATIENCE_SECONDS) as other:
        other.get("/healthz")
        flood = threading.Thread(target=_answer, args=(stack, _flood(start)), daemon=True)
        flood.start()
        slowest = 0.0
        while flood.is_alive():
            began = time.monotonic()
            assert other.get("/healthz").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < PATIENCE_SECONDS / 4


def test_a_large_head_is_431(stack: Stack) -> None:
    """Just over the bound, in one header or in many; just under it is served."""
    size = http_protocol.MAX_HEAD
    one = b"X-Long: " + b"a" * size + b"\r\n"
    many = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 100) for number in range(size // 100))
    for headers in (one, many):
        answer = _answer(stack, [LINE + b"Host: 127.0.0.1\r\n" + headers + b"\r\n"])
        assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
        assert b"64 KiB" in answer
    fits = b"X-Long: " + b"a" * (size - 1000) + b"\r\nConnection: close\r\n"
    assert _answer(stack, [LINE + b"Host: 127.0.0.1\r\n" + fits + b"\r\n"]).startswith(b"HTTP/1.1 200 ")


def test_endless_trailers_are_cut_off(stack: Stack) -> None:
    """What follows a chunked body is bounded as the head is."""
    start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: "
    began = time.monotonic()
    _answer(stack, _flood(start))
    assert time.monotonic() - began < PATIENCE_SECONDS


def test_a_body_is_no_head(stack: Stack) -> None:
    """Megabytes of body in pieces of any size reach the handler, which has a bound of its own."""
    for size in (1 << 10, 1 << 20):
        pieces = iter([b"a" * size] * ((3 << 20) // size))
        answer = httpx.post(f"{stack.url}/v1/chat/completions", content=pieces, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/sign-in/", "/api/v1/tenants/", "/api/v1/workers/announce/", "/nothing/"])
def test_a_large_body_for_django_is_413(stack: Stack, path: str) -> None:
    """Declared or chunked, it is refused before Django writes it to disk, whoever sends it."""
    declared = httpx.post(stack.url + path, content=b"a" * (bodies.MAX_BODY + 1), timeout=PATIENCE_SECONDS)
    assert declared.status_code == 413
    assert declared.headers["x-request-id"]
    chunked = httpx.post(stack.url + path, content=iter([b"a" * (1 << 16)] * 17), timeout=PATIENCE_SECONDS)
    assert chunked.status_code == 413


def test_a_body_that_just_fits_reaches_django(stack: Stack) -> None:
    """It is the view that answers."""
    url = f"{stack.url}/api/v1/tenants/"
    assert httpx.post(url, content=b"a" * bodies.MAX_BODY, timeout=PATIENCE_SECONDS).status_code == 401


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate"])
def test_a_compressed_body_is_415(stack: Stack, encoding: str) -> None:
    """The refusal names the header, not a character of what could not be read."""
    raw = stack.tenant().key()
    with stack.http(raw) as client:
        answer = client.post("/v1/chat/completions", content=b"\x1f\x8b", headers={"content-encoding": encoding})
    assert answer.status_code == 415
    assert encoding in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "unsupported_encoding"
