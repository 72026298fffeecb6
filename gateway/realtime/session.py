"""What the responses of one socket default to: set by `session.update`. Pure."""

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.api.errors import BadRequest
from gateway.realtime.asking import ask
from gateway.realtime.conversation import Conversation
from gateway.realtime.held import held_bytes
from gateway.realtime.room import Share, no_room

MAX_BYTES = 256 << 10  # of a session, as JSON
MAX_HELD = 4 << 20  # bytes of memory of one: many small values take many times what they are as JSON

_OF_A_RESPONSE = ("input", "messages", "conversation", "metadata")


class Session:
    """Fields of a response that are taken where a `response.create` leaves them out."""

    def __init__(self, model: str, share: Share) -> None:
        """Begin with no defaults but a model, or an empty string.

        Args:
            model: named with the socket's address.
            share: what the fields take their room from.
        """
        self._share = share
        self._size = 0
        self.id = f"sess_{uuid.uuid4().hex[:24]}"
        self._fields: dict[str, Any] = {"model": model} if model else {}

    @property
    def model(self) -> str:
        """The model that responses default to, or an empty string."""
        return str(self._fields.get("model", ""))

    def update(self, changes: Mapping[str, Any]) -> None:
        """Take the fields that are there; null clears one. All of them are taken, or none.

        Raises:
            BadRequest: names the field under `session`, and the fix.
        """
        for name, own in (("type", "realtime"), ("object", "realtime.session"), ("id", self.id)):
            if changes.get(name, own) not in (own, None):
                raise BadRequest(f"`session.{name}` can only be `{own}`: leave it out", param=f"session.{name}")
        for name in _OF_A_RESPONSE:
            if changes.get(name) is not None:
                raise BadRequest(
                    f"`session.{name}` belongs to a response: send it in `response.create`", param=f"session.{name}"
                )
        wanted = {
            name: value for name, value in changes.items() if name not in ("type", "object", "id", *_OF_A_RESPONSE)
        }
        fields = {name: value for name, value in (self._fields | wanted).items() if value is not None}
        ask({"model": "any"} | fields | {"input": "any"}, Conversation(self._share), root="session")
        if len(msgspec.json.encode(fields)) > MAX_BYTES:
            raise _full(f"The session is over {MAX_BYTES >> 10} KiB of JSON: shorten it")
        if (size := held_bytes(fields)) > MAX_HELD:
            raise _full(f"The session would take {size} bytes of memory, of at most {MAX_HELD}: give it fewer values")
        if not self._share.take(size - self._size):
            raise no_room("close some", param="session", code="session_full")
        self._fields, self._size = fields, size

    def fields_of(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a response: its own, and those of the session that it leaves out."""
        return {**self._fields, **response}

    def object(self) -> dict[str, Any]:
        """Return the session as events show it."""
        defaults = {
            "object": "realtime.session",
            "type": "realtime",
            "id": self.id,
            "model": None,
            "output_modalities": ["text"],
            "instructions": "",
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
        }
        return defaults | self._fields


def _full(message: str) -> BadRequest:
    return BadRequest(message, param="session", code="session_full")
