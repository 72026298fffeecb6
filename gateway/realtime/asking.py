"""A `response.create` as a request of the chat surface, so that the same code serves both. Pure.

The Realtime names are turned into chat's, fields that both have go over as they are, and chat's own rules check them;
what those refuse is told under the name that the client wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.decode import Off, convert
from gateway.api.errors import BadRequest
from gateway.api.sampling import MAX_COUNT
from gateway.api.schemas import ChatRequest
from gateway.realtime.conversation import Conversation
from gateway.realtime.items import Item, MessageItem, chat_messages, read_item
from gateway.realtime.naming import of_response, under

_OFF: Off = {
    "modalities": (["text"],),
    "output_modalities": (["text"],),
    "truncation": ("disabled",),
    "include": ([],),
    "n": (1,),
    "use_beam_search": (False,),
    "beam_width": (),
    "length_penalty": (),
    "early_stopping": (),
    "stream": (True,),
    "stream_options": (),
    "audio": (),
    "voice": (),
    "prompt": (),
    "reasoning": (),
    "tracing": (),
}


class _Own(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The fields that the chat surface has under another name, or not at all. `messages` is an alias of `input`."""

    model: str = ""
    input: str | list[Any] | None = None
    messages: list[Any] | None = None
    instructions: str | None = None
    conversation: Literal["auto", "none"] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | Literal["inf"] | None = None

    @property
    def source(self) -> str:
        """What holds the input."""
        if self.input is not None:
            return "input"
        return "conversation" if self.messages is None else "messages"

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        if self.input is not None and self.messages is not None:
            raise BadRequest("Send the conversation in `input`, once: leave `messages` out", param="input")
        if not self.model:
            raise BadRequest("`model` is missing", param="model", code="missing_field")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a response is asked for."""

    request: ChatRequest
    source: str  # what holds its messages: `input`, `messages` or `conversation`
    joins: bool  # whether what it gives is added to the conversation


def ask(fields: Mapping[str, Any], conversation: Conversation, *, root: str = "response") -> Ask:
    """Return what `fields` ask for.

    Args:
        fields: of a response, those that the session gives included; null is as good as left out.
        conversation: where the response's input is, unless it brings its own, and what `item_reference` names.
        root: the client's object that the fields stand in, for errors.

    Raises:
        BadRequest: names the field under `root`, and the fix.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        own = convert({name: given.pop(name) for name in _Own.__struct_fields__ if name in given}, _Own, {})
    except BadRequest as error:
        under(error, root)
        raise
    messages = chat_messages(_items(own, conversation, root))
    if own.instructions:
        messages.insert(0, {"role": "system", "content": own.instructions})
    chat = given | {"model": own.model, "messages": messages} | _tools(given)
    if "max_completion_tokens" in given:
        field = f"{root}.max_completion_tokens"
        raise BadRequest(f"`{field}` is called `{root}.max_output_tokens` here", param=field, code="unknown_field")
    if isinstance(own.max_output_tokens, int):
        chat["max_completion_tokens"] = own.max_output_tokens
    try:
        request = convert(chat, ChatRequest, _OFF)
    except BadRequest as error:
        of_response(error, own.source, root)
        raise
    joins = own.conversation == "auto" or (own.conversation is None and own.source != "messages")
    return Ask(request=request, source=own.source, joins=joins)


def _items(own: _Own, conversation: Conversation, root: str) -> Sequence[Item]:
    source = own.input if own.input is not None else own.messages
    if source is None:
        if not conversation.items:
            raise BadRequest(
                f"There is nothing to respond to: send `{root}.input`, or add an item to the conversation",
                param=f"{root}.input",
            )
        return conversation.items
    if isinstance(source, str):
        return [MessageItem(role="user", content=source)]
    if not source:
        raise BadRequest(f"`{root}.{own.source}` is empty: send at least one item", param=f"{root}.{own.source}")
    path = f"{root}.{own.source}"
    return [_item(value, f"{path}[{index}]", conversation) for index, value in enumerate(source)]


def _item(value: object, path: str, conversation: Conversation) -> Item:
    if isinstance(value, dict) and value.get("type") == "item_reference":
        name = value.get("id")
        if not isinstance(name, str) or len(value) > 2:
            raise BadRequest(f"`{path}` must be {{type, id}}, with the id of an item", param=path)
        return conversation.get(name, field=f"{path}.id")
    return read_item(value, path)


def _tools(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tools as the chat surface nests them."""
    tools, choice = given.get("tools"), given.get("tool_choice")
    nested: dict[str, Any] = {}
    if isinstance(tools, list):
        nested["tools"] = [_nested(tool) for tool in tools]
    if isinstance(choice, dict):
        nested["tool_choice"] = _nested(choice)
    return nested


def _nested(tool: object) -> object:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
