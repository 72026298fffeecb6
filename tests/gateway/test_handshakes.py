"""Handshakes of websockets that cannot be read, and requests to no host: all are answered, and nothing is held open."""

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from gateway.http_protocol import HttpProtocol
from tests.gateway.test_websocket_protocol import PATIENCE_SECONDS, UPGRADE, App


def said_to(*sent: bytes) -> bytes:
    """Send pieces, the next one when there is an answer to the one before; return all that came until the end."""

    async def story() -> bytes:
        config = Config(App(), http=HttpProtocol, lifespan="off", log_config=None, ws_ping_interval=None)
        config.load()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: HttpProtocol(config, ServerState(), {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = b""
            for piece in sent:
                writer.write(piece)
                head += await reader.readuntil(b"\r\n\r\n") if not head else b""
            said = head + await reader.read()
        writer.close()
        server.close()
        return said

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("handshake", "status"),
    [
        (UPGRADE[:-2] + b"Cookie: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (UPGRADE[:-2] + b"".join(b"X-%d: 1\r\n" % number for number in range(130)) + b"\r\n", 431),
        (UPGRADE.replace(b"GET / ", b"GET /?" + b"a" * 9000 + b" "), 414),
        (UPGRADE.replace(b"Sec-WebSocket-Key", b"X"), 400),
        (UPGRADE.replace(b"Version: 13", b"Version: 1"), 400),
    ],
    ids=["long header", "many headers", "long address", "no key", "another version"],
)
def test_a_handshake_that_is_none_is_answered(handshake: bytes, status: int) -> None:
    """With a status, and the connection ends."""
    assert said_to(handshake).startswith(b"HTTP/1.1 %d " % status)


def test_a_text_that_is_none_closes_and_is_nobodys_error(caplog: pytest.LogCaptureFixture) -> None:
    """Broken UTF-8, in one frame or split over two: 1007, and no line of ours says that something has failed."""
    whole = Frame(Opcode.TEXT, b"a\xff").serialize(mask=True)
    split = Frame(Opcode.TEXT, b"a\xe2\x82", fin=False).serialize(mask=True) + Frame(Opcode.CONT, b"z").serialize(
        mask=True
    )
    for sent in (whole, split):
        last = said_to(UPGRADE, sent).split(b"\r\n\r\n", 1)[1]
        assert int.from_bytes(last[2:4], "big") == 1007
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("hosts", [[], [b"a", b"b"], [b"a", b"a"]])
@pytest.mark.parametrize("upgrades", [False, True])
def test_a_request_has_one_host(hosts: list[bytes], upgrades: bool) -> None:
    """HTTP/1.1 wants it so (RFC 9112, 3.2): whoever forwards a request with two may mean the other one."""
    head: Any = UPGRADE if upgrades else b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    head = head.replace(b"Host: a\r\n", b"".join(b"Host: %b\r\n" % host for host in hosts))
    assert said_to(head).startswith(b"HTTP/1.1 400 ")
