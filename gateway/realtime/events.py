"""The events that a client may send over `/v1/realtime`: each a JSON object in a text frame. Pure.

response.create             generate; what `response` leaves out, the session and the conversation say
response.cancel             one response, or all
session.update              what responses default to
conversation.item.create    add an item to the conversation of this socket
conversation.item.delete
conversation.item.retrieve
session.prefetch            bring up the KV of a session whose next turn is about to come
"""

from contextlib import nullcontext
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.api.decode import LARGE_BYTES, convert, decode_json, undisturbed
from gateway.api.errors import ApiError, BadRequest
from gateway.api.exchange import MAX_BODY
from gateway.api.sampling import check_session

MAX_EVENT = MAX_BODY  # characters; a longer one is an error, one over the protocol's own bound closes the socket
MAX_ID = 512

Id = Annotated[str, Meta(max_length=MAX_ID)]


class ClientEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """What every event has. `event_id` is the client's own name of it, which an `error` repeats."""

    event_id: Id | None = None

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""


class ResponseCreate(ClientEvent, tag="response.create", frozen=True):
    """Generate a response."""

    response: dict[str, Any] = {}


class ResponseCancel(ClientEvent, tag="response.cancel", frozen=True):
    """Cancel one response; None: all."""

    response_id: Id | None = None


class SessionUpdate(ClientEvent, tag="session.update", frozen=True):
    """Change what responses default to."""

    session: dict[str, Any]


class ItemCreate(ClientEvent, tag="conversation.item.create", frozen=True):
    """Add an item: at the end, after another one, or at the beginning (`root`)."""

    item: dict[str, Any]
    previous_item_id: Id | None = None


class ItemDelete(ClientEvent, tag="conversation.item.delete", frozen=True):
    """Take an item out."""

    item_id: Id


class ItemRetrieve(ClientEvent, tag="conversation.item.retrieve", frozen=True):
    """Ask for an item."""

    item_id: Id


class SessionPrefetch(ClientEvent, tag="session.prefetch", frozen=True):
    """A session's next turn is about to come. `model` None: any that the caller may use."""

    session: str
    model: Id | None = None

    def check(self) -> None:
        """Raise BadRequest where `session` is no id that a session may have."""
        check_session(self.session, field="session")


_KINDS: dict[object, type[ClientEvent]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (ResponseCreate, ResponseCancel, SessionUpdate, ItemCreate, ItemDelete, ItemRetrieve, SessionPrefetch)
}


class EventRefused(Exception):
    """A client's event can't be taken; `event_id` is the client's own, if it could be read."""

    def __init__(self, error: ApiError, event_id: str | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.event_id = event_id


def parse(text: str) -> ClientEvent:
    """Read a client's event.

    Raises:
        EventRefused: names the field and the fix.
    """
    event_id: str | None = None
    try:
        if len(text) > MAX_EVENT:
            raise BadRequest(f"The event is over {MAX_EVENT} characters: send less text", code="event_too_large")
        with undisturbed() if len(text) > LARGE_BYTES else nullcontext():
            event = decode_json(text)
        named = event.get("event_id")
        event_id = named if isinstance(named, str) and len(named) <= MAX_ID else None
        kind = event.get("type")
        if not isinstance(kind, str) or kind not in _KINDS:
            raise BadRequest(f"`type` must be one of {', '.join(map(str, _KINDS))}", param="type", code="unknown_event")
        return convert({name: value for name, value in event.items() if value is not None}, _KINDS[kind], {})
    except ApiError as error:
        raise EventRefused(error, event_id) from error
