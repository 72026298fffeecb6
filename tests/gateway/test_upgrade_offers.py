"""Requests that offer another protocol are read as any others; only a websocket's handshake changes it."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.http_protocol import HttpProtocol

PATIENCE_SECONDS = 60
LAST = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
OFFERS = {
    "Java's HTTP client": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n",
    "a protocol nobody knows": b"Upgrade: foo\r\nConnection: keep-alive, upgrade\r\n",
    "a websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
}
BODIES = [b"", b"hello", LAST, b"\r\n\r\n" + LAST * 3]


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Tell what came."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    offered = [name.decode() for name, value in scope["headers"] if name == b"upgrade" or b"pgrade" in value]
    told = json.dumps([scope["method"], scope["path"], body.decode(), offered]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(told))]})
    await send({"type": "http.response.body", "body": told})


def answers(*pieces: bytes) -> list[Any]:
    """Return what is understood of pieces that are read one by one: each request, or the status of a refusal."""

    async def story() -> bytes:
        config = Config(_app, http=HttpProtocol, lifespan="off", log_config=None)
        config.load()
        made: asyncio.Queue[HttpProtocol] = asyncio.Queue()

        class Told(HttpProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                made.put_nowait(self)

        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Told(config, ServerState(), {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(PATIENCE_SECONDS):
            connection = await made.get()
            for piece in pieces:
                connection.data_received(piece)
            said = await reader.read()
        writer.close()
        server.close()
        return said

    found = asyncio.run(story()).split(b"HTTP/1.1 ")[1:]
    return [json.loads(one.split(b"\r\n\r\n", 1)[1]) if one.startswith(b"200") else int(one[:3]) for one in found]


def request(offer: bytes, body: bytes, *, chunked: bool, method: bytes = b"POST") -> bytes:
    """Return a request with an offer."""
    head = method + b" /first%20one?a=b HTTP/1.1\r\nHost: a\r\n" + offer
    if chunked:
        chunk = b"%x\r\n" % len(body) + body + b"\r\n" if body else b""
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("offer", OFFERS)
@settings(max_examples=40)
@given(body=st.sampled_from(BODIES), chunked=st.booleans(), cuts=st.lists(st.integers(0, 400), max_size=3))
def test_a_body_is_a_body_however_it_comes(offer: str, body: bytes, chunked: bool, cuts: list[int]) -> None:
    """In one packet or in several, and whatever it looks like; the connection goes on with the next request."""
    sent = request(OFFERS[offer], body, chunked=chunked) + LAST
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    found = answers(*(sent[start:end] for start, end in pairwise(edges)))
    assert found == [["POST", "/first one", body.decode(), []], ["GET", "/last", "", []]]


@pytest.mark.parametrize("offer", ["Java's HTTP client", "a protocol nobody knows"])
def test_without_a_body_too(offer: str) -> None:
    """A GET with an offer is answered."""
    sent = b"GET /first HTTP/1.1\r\nHost: a\r\n" + OFFERS[offer] + b"\r\n"
    assert answers(sent, LAST) == [["GET", "/first", "", []], ["GET", "/last", "", []]]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_tunnel_is_refused(version: bytes) -> None:
    """CONNECT is a 400, and what follows it is nobody's request."""
    assert answers(b"CONNECT a:1 HTTP/" + version + b"\r\nHost: a\r\n\r\n" + LAST) == [400]
