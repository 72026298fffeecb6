"""What a websocket's peer may send, and leave unread, of the server's own protocol."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from gateway import websocket_protocol
from gateway.http_protocol import HttpProtocol
from tests.gateway.wire.scripted import until

PATIENCE_SECONDS = 60
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
Story = Callable[["App", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class App:
    """Takes a socket, counts its messages, and closes it when it is told to."""

    def __init__(self) -> None:
        self.num_messages = 0
        self.closing = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one socket."""
        await receive()
        await send({"type": "websocket.accept"})
        closer = asyncio.create_task(self._close(send))
        while (await receive())["type"] != "websocket.disconnect":
            self.num_messages += 1
        self.ended.set()
        closer.cancel()

    async def _close(self, send: Any) -> None:
        await self.closing.wait()
        await send({"type": "websocket.close", "code": 1008, "reason": "enough"})


def tell(story: Story) -> None:
    """Run a story over a socket that is open."""

    async def run() -> None:
        app = App()
        config = Config(app, http=HttpProtocol, lifespan="off", log_config=None, ws_ping_interval=None)
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: HttpProtocol(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(PATIENCE_SECONDS):
            writer.write(UPGRADE)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            assert b"permessage-deflate" not in head
            await story(app, reader, writer)
            await app.ended.wait()
        writer.close()
        server.close()

    asyncio.run(run())


def test_message_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a frame, or a fragment without its last one, closes with 1008 after its time; whole messages don't."""
    monkeypatch.setattr(websocket_protocol, "MESSAGE_SECONDS", 0.3)
    whole = Frame(Opcode.TEXT, b"whole").serialize(mask=True)

    async def story(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes) -> None:
        writer.write(whole * 3)
        await until(lambda: app.num_messages == 3)
        writer.write(rest)
        said = await reader.read()
        assert said[:1] == b"\x88"
        assert int.from_bytes(said[2:4], "big") == 1008
        assert said[4:].startswith(b"message_too_slow")

    fragment = Frame(Opcode.TEXT, b"half", fin=False).serialize(mask=True)
    for rest in (whole[:-1], fragment, fragment + whole[:1]):
        tell(lambda app, reader, writer, rest=rest: story(app, reader, writer, rest))  # type: ignore[misc]


def test_messages_in_a_row_each_have_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that always has half a message under way is not cut off, as long as each one ends in time."""
    monkeypatch.setattr(websocket_protocol, "MESSAGE_SECONDS", 2.0)
    whole = Frame(Opcode.TEXT, b"whole").serialize(mask=True)

    async def story(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = asyncio.get_running_loop().time()
        writer.write(whole[:-1])
        while asyncio.get_running_loop().time() - began < 3.0:
            writer.write(whole[-1:] + whole[:-1])
            await asyncio.sleep(0.02)
        assert app.num_messages > 10
        assert not app.ended.is_set()
        writer.write(whole[-1:])
        app.closing.set()
        assert b"enough" in await reader.read()

    tell(story)


def test_close_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that leaves a close unanswered is cut off after its time."""
    monkeypatch.setattr(websocket_protocol, "CLOSE_SECONDS", 0.2)

    async def story(app: App, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        app.closing.set()
        with contextlib.suppress(ConnectionResetError):  # cut off or ended: what counts is that it comes
            while await reader.read(100):
                pass

    tell(story)
