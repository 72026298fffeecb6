"""Websocket frames by hand: a handshake and whatever bytes after it."""

import base64
import contextlib
import os
import socket
import struct
from collections.abc import Iterator

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
PATIENCE_SECONDS = 60


@contextlib.contextmanager
def handshaken(address: tuple[str, int], key: str, path: str = "/v1/realtime") -> Iterator[socket.socket]:
    """Open a websocket with a raw socket."""
    nonce = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {nonce}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {key}\r\n\r\n"
    )
    with socket.create_connection(address, timeout=PATIENCE_SECONDS) as dialled:
        dialled.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = dialled.recv(1)  # a frame may follow at once
            assert piece, answer
            answer += piece
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        yield dialled


def frame(opcode: int, payload: bytes, *, fin: bool = True, masked: bool = True, reserved: int = 0) -> bytes:
    """Return a frame, right or wrong."""
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode])
    mark = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([mark | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([mark | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([mark | 127]) + struct.pack("!Q", len(payload))
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def close_code(dialled: socket.socket) -> int | None:
    """Read to the server's close and return its code; None: the connection ended without one."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := dialled.recv(1 << 16):
            data += piece
    while len(data) >= 2:
        opcode, size = data[0] & 0x0F, data[1] & 0x7F
        at = 2
        if size in (126, 127):
            width = 2 if size == 126 else 8
            size, at = int.from_bytes(data[2 : 2 + width]), 2 + width
        payload, data = data[at : at + size], data[at + size :]
        if opcode == CLOSE:
            return int.from_bytes(payload[:2]) if len(payload) >= 2 else None
    return None
