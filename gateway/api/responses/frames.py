"""Events of a response as server-sent events: named, as this surface has them, and without a `[DONE]`."""

import secrets
from collections.abc import Iterable

import msgspec

from gateway.api import sse
from gateway.api.responses.narrator import Event
from gateway.api.shapes import PAD_BYTES


def frames(events: Iterable[Event], padded: bool) -> bytes:
    """Return events in one piece; `padded`: those with a delta hide how long it is."""
    return b"".join(b"event: " + str(event["type"]).encode() + b"\n" + _frame(event, padded) for event in events)


def _frame(event: Event, padded: bool) -> bytes:
    if padded and "delta" in event:
        size = len(msgspec.json.encode(event["delta"]))
        event = event | {"obfuscation": secrets.token_hex(PAD_BYTES)[: -size % PAD_BYTES]}
    return sse.event(event)
