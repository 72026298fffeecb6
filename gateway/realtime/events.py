"""The events of `/v1/realtime`: what a client may say, strictly, and what the server says. Pure."""

import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.protocol import pb
from gateway.api.decode import Off, convert, decode_json
from gateway.api.errors import ApiError, BadRequest
from gateway.api.sampling import Sampling, check_session
from gateway.api.schemas import MAX_MESSAGES, ChatRequest, Message, TextPart
from gateway.workers.generation import Finished

MAX_FRAME = 1 << 20  # characters of one client event
MAX_EVENT_ID = 512


class InputText(msgspec.Struct, tag="input_text", tag_field="type", forbid_unknown_fields=True):
    """A user's or system's text."""

    text: str


class OutputText(msgspec.Struct, tag="output_text", tag_field="type", forbid_unknown_fields=True):
    """An assistant's text."""

    text: str


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """One message of the input."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputText | OutputText | TextPart]
    type: Literal["message"] = "message"
    id: str | None = None
    object: str | None = None
    status: str | None = None

    def message(self) -> Message:
        """Return it as the chat surface has it."""
        content = self.content
        text = content if isinstance(content, str) else "\n".join(part.text for part in content)
        return Message(role=self.role, content=text)


Items = Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ResponseRequest(Sampling, forbid_unknown_fields=True, kw_only=True):
    """The `response` of a `response.create`. `messages` is an alias of `input`."""

    model: str = ""
    input: str | Items | None = None
    messages: Items | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | Literal["inf"] | None = None

    def chat(self, default_model: str) -> ChatRequest:
        """Return the same request on the chat surface.

        Raises:
            BadRequest: there is no input, or two, or no model.
        """
        source = self.input if self.input is not None else self.messages
        if source is None or (self.input is not None and self.messages is not None):
            raise BadRequest("Send the conversation in `response.input`, once", param="response.input")
        if not self.model and not default_model:
            raise BadRequest("`response.model` is missing", param="response.model")
        messages = [Message(role="user", content=source)] if isinstance(source, str) else [i.message() for i in source]
        if self.instructions:
            messages.insert(0, Message(role="system", content=self.instructions))
        shared = {name: getattr(self, name) for name in Sampling.__struct_fields__ if name not in ("model", "stream")}
        most = self.max_output_tokens if isinstance(self.max_output_tokens, int) else None
        return ChatRequest(
            model=self.model or default_model, messages=messages, max_completion_tokens=most, stream=True, **shared
        )


_OFF: Off = {
    "modalities": (["text"],),
    "output_modalities": (["text"],),
    "conversation": ("none", "auto"),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "audio": (),
    "voice": (),
    "prompt": (),
}
_FIELDS = {
    "response.create": {"type", "event_id", "response"},
    "response.cancel": {"type", "event_id", "response_id"},
    "session.prefetch": {"type", "event_id", "session", "model"},
}


class ClientEvent(msgspec.Struct, frozen=True):
    """A well-formed event of a client's."""

    type: str
    event_id: str | None
    response: ResponseRequest | None = None
    response_id: str | None = None
    session: str = ""
    model: str = ""  # empty: every model that the caller may use


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
        if len(text) > MAX_FRAME:
            raise BadRequest(f"The event is over {MAX_FRAME} characters: send less text", code="event_too_large")
        event = decode_json(text)
        event_id = _optional_text(event, "event_id")
        return _read(event, event_id)
    except ApiError as error:
        raise EventRefused(error, event_id) from error


def _read(event: Mapping[str, Any], event_id: str | None) -> ClientEvent:
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise BadRequest(f"`type` must be one of {', '.join(_FIELDS)}", param="type", code="unknown_event")
    for name in event:
        if name not in _FIELDS[kind]:
            raise BadRequest(f"Unknown field `{name[:200]}`: leave it out", param=name, code="unknown_field")
    if kind == "response.cancel":
        return ClientEvent(kind, event_id, response_id=_optional_text(event, "response_id"))
    if kind == "session.prefetch":
        return ClientEvent(kind, event_id, session=_session_of(event), model=_optional_text(event, "model") or "")
    try:
        if not isinstance(event.get("response"), dict):
            raise BadRequest("`response` must be an object: {model, input, ...}")
        response = convert(event["response"], ResponseRequest, _OFF)
    except BadRequest as error:
        param = f"response.{error.param}" if error.param else "response"
        message = error.message.replace(f"`{error.param}`", f"`{param}`", 1) if error.param else error.message
        raise BadRequest(message, param=param, code=error.error_code) from error
    return ClientEvent(kind, event_id, response=response)


def _session_of(event: Mapping[str, Any]) -> str:
    session = event.get("session")
    if not isinstance(session, str):
        raise BadRequest("`session` must be the id of a session", param="session")
    check_session(session, field="session")
    return session


def _optional_text(event: Mapping[str, Any], name: str) -> str | None:
    value = event.get(name)
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_EVENT_ID):
        raise BadRequest(f"`{name}` must be a text of at most {MAX_EVENT_ID} characters", param=name)
    return value


# ---------------------------------------------------------------- what the server says


def server_event(kind: str, **fields: object) -> str:
    """Return an event of the server's, encoded."""
    return msgspec.json.encode({"type": kind, "event_id": f"event_{uuid.uuid4().hex}", **fields}).decode()


def error_event(error: ApiError, event_id: str | None) -> str:
    """Return an `error` that names the client's event."""
    body = error.body()["error"]
    assert isinstance(body, dict)
    return server_event("error", error={**body, "event_id": event_id})


def response_object(response_id: str, model: str, status: str) -> dict[str, object]:
    """Return a response as `response.created` shows it."""
    return {
        "id": response_id,
        "object": "realtime.response",
        "status": status,
        "status_details": None,
        "model": model,
        "output": [],
        "usage": None,
    }


def finished_object(response_id: str, model: str, text: str, end: Finished) -> dict[str, object]:
    """Return a response that ran to its end: `completed`, or `incomplete` where a limit of tokens ended it."""
    complete = end.reason == pb.FINISH_REASON_STOP
    details = None if complete else {"type": "incomplete", "reason": "max_output_tokens"}
    return response_object(response_id, model, "completed" if complete else "incomplete") | {
        "status_details": details,
        "output": [_message(text, "completed" if complete else "incomplete")],
        "usage": {
            "input_tokens": end.prompt_tokens,
            "output_tokens": end.completion_tokens,
            "total_tokens": end.prompt_tokens + end.completion_tokens,
            "input_token_details": {"cached_tokens": end.cached_tokens},
        },
    }


def cancelled_object(response_id: str, model: str, text: str) -> dict[str, object]:
    """Return a response that its client cancelled."""
    return response_object(response_id, model, "cancelled") | {
        "status_details": {"type": "cancelled", "reason": "client_cancelled"},
        "output": [_message(text, "incomplete")],
    }


def failed_object(response_id: str, model: str, text: str, error: ApiError) -> dict[str, object]:
    """Return a response that failed, with what had been generated."""
    return response_object(response_id, model, "failed") | {
        "status_details": {"type": "failed", "error": error.body()["error"]},
        "output": [_message(text, "incomplete")] if text else [],
    }


def _message(text: str, status: str) -> dict[str, object]:
    return {
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text}],
    }
