"""Messages between the front and its helper: a length, then so many bytes. An empty answer says that there is none."""

import os
import struct

HEADER = struct.Struct("<I")


def read_frame(file: int) -> bytes | None:
    """Return the next message; None at the end."""
    header = _read(file, HEADER.size)
    return None if header is None else _read(file, *HEADER.unpack(header))


def write_frame(file: int, data: bytes) -> None:
    """Send a message."""
    view = memoryview(HEADER.pack(len(data)) + data)
    while view:
        view = view[os.write(file, view) :]


def _read(file: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = os.read(file, min(1 << 16, count - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)
