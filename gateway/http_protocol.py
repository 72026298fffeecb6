"""uvicorn's HTTP protocol with bounds on a request's head, which uvicorn itself sets none on.

The parser joins a header's pieces by copying what it has at each read, so that one endless header would keep the event
loop, and with it every stream of the process, busy for minutes; and a head that never ends would hold a connection for
ever. Neither needs a key. Bodies have their bounds where they are read: `gateway.api.exchange`, `gateway.bodies`.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.websocket_protocol import WebSocketProtocol

MAX_HEAD = 64 << 10  # bytes of request line, headers and trailers
HEAD_SECONDS = 30.0  # from the connection, or from the first byte after a response, to the end of the head
TOO_LARGE = f"The request's line and headers are over {MAX_HEAD >> 10} KiB.".encode()


class HttpProtocol(HttpToolsProtocol):  # type: ignore[misc]  # httptools has no types
    """Refuses a head that is too large with 431, and closes a connection on which none comes in time."""

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0  # of this request's, as the parser has told them
    _untold_bytes = 0  # read since the parser last told anything: a header that has no end yet
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take a connection; one that becomes a websocket gets our bounds too."""
        super().connection_made(transport)
        self.ws_protocol_class = WebSocketProtocol
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, as long as the head is in its bounds."""
        if self._refused or self.transport.is_closing():
            return
        self._untold_bytes += len(data)
        super().data_received(data)
        if self._untold_bytes > MAX_HEAD and not self._refused:
            self._refuse()
        is_ours = self.transport.get_protocol() is self  # else it is a websocket now
        if is_ours and (self.cycle is None or self.cycle.response_complete):
            self._await_head()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._head_bytes = self._untold_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the path."""
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header or a trailer."""
        self._count(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._cancel_deadline()
        self._untold_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._untold_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        self._untold_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless it was refused for its size."""
        if not self._refused:
            self._refused = True
            super().send_400_response(msg)

    def _count(self, *parts: bytes) -> None:
        self._untold_bytes = 0
        self._head_bytes += sum(map(len, parts)) + 4
        if self._head_bytes > MAX_HEAD:
            self._refuse()
            raise ValueError("the head is too large")  # ends the parser's work; comes back as a parser error

    def _refuse(self) -> None:
        self._refused = True
        if self.cycle is None or self.cycle.response_complete:  # else: in the middle of a response, nothing can be said
            size = str(len(TOO_LARGE)).encode()
            head = (
                b"content-type: text/plain; charset=utf-8\r\ncontent-length: " + size + b"\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[431] + head + TOO_LARGE)
        self.transport.close()

    def _await_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._time_out)

    def _time_out(self) -> None:
        self._deadline = None
        self.transport.close()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
