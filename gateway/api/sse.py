"""Server-sent events as OpenAI's SDKs read them: `data: {json}`, a blank line, never an `id:`."""

import msgspec

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # a proxy in front must not hold tokens back
]

_encode = msgspec.json.Encoder().encode


def event(data: object) -> bytes:
    """Return one event; JSON escapes line breaks, so that the frame is one line."""
    return b"data: " + _encode(data) + b"\n\n"
