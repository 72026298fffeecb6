"""uvicorn's websocket protocol with bounds on what a peer may send, and on what it may leave unread.

A peer that never reads holds what was written for it, and uvicorn waits for it without end: a write waits for room, a
close for the peer's answer, and a transport that closes for its buffer to empty. Here the kernel holds little for each
socket and cuts a peer that takes nothing, a close goes out at once, and one without an answer is cut off.
"""

import asyncio
import logging
import socket
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.server import ServerProtocol

MAX_MESSAGE = 5 << 20  # bytes, of all fragments together; more closes with 1009
MESSAGE_SECONDS = 60.0  # from a message's first byte to its last
SEND_BUFFER = 64 << 10  # bytes that the kernel is asked to hold for a peer; Linux doubles it
GONE_SECONDS = 60  # that a peer may leave what was sent unacknowledged, or its window shut
CLOSE_SECONDS = 10.0  # for a peer to answer a close frame
BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
LAST_SECONDS = 1.0  # for a close frame to go out when the process ends


class WebSocketProtocol(WebSocketsSansIOProtocol):  # type: ignore[misc]  # uvicorn's types are not followed
    """Takes messages up to MAX_MESSAGE, compresses nothing, and lets no peer hold a socket by not reading."""

    close_timer: asyncio.TimerHandle | None
    frames: list[bytes]
    _deadline: asyncio.TimerHandle | None = None  # of a message whose end has not come

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # Without permessage-deflate: tokens are small, its windows take 40 KiB a socket, and a message may not unfold.
        self.conn = ServerProtocol(max_size=MAX_MESSAGE, logger=logging.getLogger("uvicorn.error"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_SECONDS * 1000)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come; a message that never ends would hold what there is of it."""
        super().data_received(data)
        if not self.handshake_initiated:  # its head comes whole, from the HTTP protocol
            self._refuse()
        elif not self.frames and not self.conn.reader.buffer:
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(MESSAGE_SECONDS, self._time_out)

    def send_receive_event_to_app(self) -> None:
        """Pass a whole message on; the next one has a time of its own. What is no text closes the socket."""
        self._cancel_deadline()
        if self.curr_msg_data_type == "text" and not self.close_sent and not _is_text(self.frames):
            self.frames = []
            self.conn.fail(1007, "text frames hold UTF-8")
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message; a close waits for nobody, and whoever still waited to send finds the socket closed."""
        if message["type"] == "websocket.close" and self.handshake_complete:
            self.writable.set()
        await super().send(message)
        if self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(CLOSE_SECONDS, self.transport.abort)

    def shutdown(self) -> None:
        """Close, since the process ends; a peer that takes nothing does not hold it up."""
        super().shutdown()
        self.loop.call_later(LAST_SECONDS, self.transport.abort)

    def _refuse(self) -> None:
        """Answer a handshake that cannot be read: the library has an answer, and uvicorn does not look for it."""
        self.transport.write(b"".join(self.conn.data_to_send()) or BAD_HANDSHAKE)
        self.transport.close()

    def _time_out(self) -> None:
        self._deadline = None
        if self.read_paused:  # we have not read on, so that the message could not end
            self._deadline = self.loop.call_later(MESSAGE_SECONDS, self._time_out)
        elif not self.close_sent and not self.transport.is_closing():
            self.conn.fail(1008, f"message_too_slow: a message took over {MESSAGE_SECONDS:.0f} s")
            self.handle_parser_exception()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _is_text(frames: list[bytes]) -> bool:
    try:
        b"".join(frames).decode()
    except UnicodeDecodeError:
        return False
    return True
