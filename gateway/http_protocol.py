"""uvicorn's HTTP protocol with bounds on a request's head, which uvicorn itself sets none on.

The parser joins a header's pieces by copying what it has at each read, so that one endless header would keep the event
loop, and with it every stream of the process, busy for minutes; and a head that never ends would hold a connection for
ever. Neither needs a key. Bodies have their bounds where they are read: `gateway.api.exchange`, `gateway.bodies`.

And with offers to change the protocol passed over unless a websocket begins. Java's HTTP client offers HTTP/2 with each
request; the parser then takes a body for the first bytes of that protocol, and what is sent next for a new request.
"""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.websocket_protocol import WebSocketProtocol

MAX_HEAD = 64 << 10  # bytes of request line, headers and trailers
HEAD_SECONDS = 30.0  # from the connection, or from the first byte after a response, to the end of the head
NO_TUNNEL = "CONNECT is not served here."
TOO_LARGE = f"The request's line and headers are over {MAX_HEAD >> 10} KiB.".encode()


class HttpProtocol(HttpToolsProtocol):  # type: ignore[misc]  # httptools has no types
    """Refuses a head that is too large with 431, and closes a connection on which none comes in time."""

    parser: Any
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
        self._unset_keepalive_if_required()
        self._feed(data)
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
        self.scope["method"] = self.parser.get_method().decode("ascii")
        if self.parser.get_http_version() == "1.1" and sum(name == b"host" for name, _ in self.headers) != 1:
            raise ValueError("a request has one Host")  # comes back as a parser error
        if not self._offers_another_protocol():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._untold_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        self._untold_bytes = 0
        if not self._offers_another_protocol():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless it was refused for its size."""
        if not self._refused:
            self._refused = True
            super().send_400_response(msg)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self.scope["method"] == "CONNECT":
                self.send_400_response(NO_TUNNEL)
            else:
                self._pass_over_offer(data[upgrade.args[0] :])

    def _should_upgrade(self) -> bool:
        """Say whether a websocket begins: what has another method or a body is no handshake."""
        has_body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0"))
            for name, value in self.headers
        )
        return self.scope["method"] == "GET" and not has_body and bool(super()._should_upgrade())

    def _offers_another_protocol(self) -> bool:
        return bool(self.parser.should_upgrade()) and not self._should_upgrade()

    def _pass_over_offer(self, rest: bytes) -> None:
        """Parse the request's head again as one that offers nothing, and go on with what came behind it."""
        version, method = self.parser.get_http_version().encode(), self.parser.get_method()
        lines = [method + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(one for one in value.split(b",") if one.strip().lower() != b"upgrade")
            if name != b"upgrade" and (value or name != b"connection"):
                lines.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._feed(b"\r\n".join([*lines, b"", rest]))

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
