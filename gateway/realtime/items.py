"""The items of a conversation: messages, calls of functions, and what those gave. Pure."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.decode import convert
from gateway.api.errors import BadRequest
from gateway.realtime.naming import under

ItemId = Annotated[str, Meta(min_length=1, max_length=64)]
Status = Literal["completed", "incomplete", "in_progress"]
MAX_PARTS = 2048  # of one message
_KINDS = ("message", "function_call", "function_call_output")


class InputText(msgspec.Struct, tag="input_text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A user's or system's text. The fields from `audio` on are what an SDK sends back with it, when empty."""

    text: str
    audio: None = None
    transcript: None = None
    image_url: None = None
    detail: None = None


class OutputText(msgspec.Struct, tag="output_text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """An assistant's text. The fields from `audio` on as above."""

    text: str
    audio: None = None
    transcript: None = None


class PlainText(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A text, as the chat surface has it."""

    text: str


class _Item(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="type"):
    """What every item has."""

    id: ItemId | None = None
    object: Literal["realtime.item"] | None = None
    status: Status | None = None

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""


class MessageItem(_Item, tag="message", frozen=True):
    """One message. Its content may be a text or a list of parts, which are joined by line breaks."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputText | OutputText | PlainText], Meta(max_length=MAX_PARTS)]

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class CallItem(_Item, tag="function_call", frozen=True):
    """The model called a function; `arguments` is what it wrote, JSON or not."""

    name: str
    arguments: str
    call_id: ItemId | None = None


class CallOutputItem(_Item, tag="function_call_output", frozen=True):
    """What a called function gave."""

    call_id: ItemId
    output: str


Item = MessageItem | CallItem | CallOutputItem


def new_id() -> str:
    """Return an item's id."""
    return f"item_{uuid.uuid4().hex[:24]}"


def read_item(value: object, path: str) -> Item:
    """Read an item that stands at `path`; one without a `type` is a message.

    Raises:
        BadRequest: names the field under `path`, and the fix.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"`{path}` must be an object: {{type, role, content}}", param=path)
    kind = value.get("type", "message")
    if kind not in _KINDS:
        fields = f"`{path}.type` must be one of {', '.join(_KINDS)}: other items aren't supported"
        raise BadRequest(fields, param=f"{path}.type")
    try:
        return _converted({**value, "type": kind}, kind)
    except BadRequest as error:
        under(error, path)
        raise


def _converted(value: Mapping[str, Any], kind: str) -> Item:
    if kind == "message":
        return convert(value, MessageItem, {})
    return convert(value, CallItem, {}) if kind == "function_call" else convert(value, CallOutputItem, {})


def item_object(item: Item) -> dict[str, Any]:
    """Return an item as events show it."""
    shown = {"id": item.id, "object": "realtime.item", "status": item.status or "completed"}
    if isinstance(item, MessageItem):
        kind = "output_text" if item.role == "assistant" else "input_text"
        content = [{"type": kind, "text": part} for part in _parts(item)]
        return shown | {"type": "message", "role": item.role, "content": content}
    if isinstance(item, CallItem):
        call = {"type": "function_call", "name": item.name, "call_id": item.call_id, "arguments": item.arguments}
        return shown | call
    return shown | {"type": "function_call_output", "call_id": item.call_id, "output": item.output}


def chat_messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return items as the chat surface's messages; calls join the assistant's message that they follow."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, MessageItem):
            messages.append({"role": item.role, "content": item.text})
        elif isinstance(item, CallOutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id or item.id or new_id(), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def _parts(item: MessageItem) -> list[str]:
    return [item.content] if isinstance(item.content, str) else [part.text for part in item.content]
