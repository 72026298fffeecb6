"""A connection on which no request comes is not kept for ever."""

import asyncio
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway import http_protocol
from gateway.http_protocol import HttpProtocol

PATIENCE_SECONDS = 60
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)


def _closes(*pieces: bytes) -> bytes:
    """Send the pieces, then nothing; return what came until the server closed."""

    async def story() -> bytes:
        config = Config(_app, http=HttpProtocol, timeout_keep_alive=1, lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: HttpProtocol(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(PATIENCE_SECONDS):
            said = await reader.read()
        writer.close()
        server.close()
        return said

    return asyncio.run(story())


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET", REQUEST[:-2]])
def test_a_head_that_does_not_end_closes_the_connection(sent: bytes) -> None:
    """Nothing, blank lines or half a head: the connection goes after HEAD_SECONDS."""
    assert _closes(sent) == b""


@pytest.mark.parametrize("sent", [b"\r\n", b"GET"])
def test_half_a_second_request_closes_the_connection(sent: bytes) -> None:
    """The first one is answered; what dribbles in after it does not hold the connection."""
    assert _closes(REQUEST, sent).startswith(b"HTTP/1.1 200 ")


def test_requests_in_a_row_are_served() -> None:
    """Pipelined requests are each answered, whatever has been counted for the one before."""
    large = REQUEST[:-2] + b"X: " + b"a" * (http_protocol.MAX_HEAD // 2) + b"\r\n\r\n"
    assert _closes(large * 5).count(b"HTTP/1.1 200 ") == 5
