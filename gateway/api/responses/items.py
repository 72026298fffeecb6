"""Items of a response's input: what a client may send, strictly, and the one form in which they are kept and shown.

message               a role and a text, or parts of text
function_call         that the model made, as an output had it
function_call_output  what came of it
item_reference        an item of a stored response, by its id
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.decode import convert
from gateway.api.errors import BadRequest
from gateway.api.formats import Name

MAX_ITEMS = 2048  # of a whole context: a template walks them in Python, on the event loop
MAX_PARTS = 2048  # of one item
MAX_SCORES = 1 << 14  # log-probabilities of a text that is sent back
_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})i?[0-9a-f]{3,4}")

Item = dict[str, Any]
Id = Annotated[str, Meta(min_length=1, max_length=128)]
CallId = Annotated[str, Meta(min_length=1, max_length=128)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Nothing = Annotated[list[object], Meta(max_length=0)]


class InputText(msgspec.Struct, tag="input_text", tag_field="type", forbid_unknown_fields=True):
    """A text that goes in."""

    text: str
    prompt_cache_breakpoint: None = None


class OutputText(msgspec.Struct, tag="output_text", tag_field="type", forbid_unknown_fields=True):
    """A text that came out, as an SDK sends it back. `logprobs` and `parsed` change nothing."""

    text: str
    annotations: Nothing | None = None
    logprobs: Annotated[list[dict[str, Any]], Meta(max_length=MAX_SCORES)] | None = None
    parsed: Any = None  # the SDKs' own reading of `text`


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message, in the short form or as an item."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[InputText | OutputText], Meta(max_length=MAX_PARTS)]
    type: Literal["message"] = "message"
    id: Id | None = None
    status: ItemStatus | None = None
    phase: None = None

    def check(self) -> None:
        """Raise BadRequest for a text that came out in a message that goes in."""
        for index, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if isinstance(part, OutputText) and self.role != "assistant":
                raise BadRequest(
                    f"`content[{index}].type` is `output_text` in a message of the role `{self.role}`: write "
                    "`input_text`",
                    param=f"content[{index}].type",
                )

    def item(self, item_id: str) -> Item:
        """Return it as it is kept."""
        texts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        parts: list[Item]
        if self.role == "assistant":
            parts = [{"type": "output_text", "annotations": [], "logprobs": [], "text": text} for text in texts]
        else:
            parts = [{"type": "input_text", "text": text} for text in texts]
        head = {"id": self.id or item_id, "type": "message", "status": self.status or "completed"}
        return head | {"role": self.role, "content": parts}


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True, rename={"is_async": "async"}):
    """A call of the model's. The fields from `namespace` on are what an SDK sends back with it.

    They are off, but for `parsed_arguments`: the SDKs' own reading of `arguments`, of which nothing is made.
    """

    call_id: CallId
    name: Name
    arguments: str
    type: Literal["function_call"]
    id: Id | None = None
    status: ItemStatus | None = None
    namespace: None = None
    caller: None = None
    created_by: None = None
    is_async: bool | None = None
    async_: bool | None = None  # the name that it has in the Python SDK's `model_dump()`
    parsed_arguments: Any = None

    def check(self) -> None:
        """Raise BadRequest for a call that isn't waited for."""
        if self.is_async or self.async_:
            raise BadRequest("`async` isn't supported other than false: leave it out", param="async")

    def item(self, item_id: str) -> Item:
        """Return it as it is kept."""
        head = {"id": self.id or item_id, "type": self.type, "status": self.status or "completed"}
        return head | {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}


class FunctionCallOutput(msgspec.Struct, forbid_unknown_fields=True):
    """What came of a call. The fields from `namespace` on as above."""

    call_id: CallId
    output: str | Annotated[list[InputText], Meta(max_length=MAX_PARTS)]
    type: Literal["function_call_output"]
    id: Id | None = None
    status: ItemStatus | None = None
    namespace: None = None
    caller: None = None
    created_by: None = None
    name: None = None

    def check(self) -> None:
        """Do nothing: its types hold all rules."""

    def item(self, item_id: str) -> Item:
        """Return it as it is kept."""
        output: Any = self.output
        if not isinstance(output, str):
            output = [{"type": "input_text", "text": part.text} for part in output]
        head = {"id": self.id or item_id, "type": self.type, "status": self.status or "completed"}
        return head | {"call_id": self.call_id, "output": output}


class ItemReference(msgspec.Struct, forbid_unknown_fields=True):
    """An item of a stored response."""

    id: Id
    type: Literal["item_reference"] | None = None

    def check(self) -> None:
        """Do nothing: its types hold all rules."""


Given = Message | FunctionCall | FunctionCallOutput | ItemReference

_KINDS: dict[str, type[Given]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "item_reference": ItemReference,
}


def read_items(source: str | Sequence[Mapping[str, Any]]) -> list[Given]:
    """Read an `input`: a text is one message of the user's.

    Raises:
        BadRequest: names the item, the field and the fix.
    """
    if isinstance(source, str):
        return [Message(role="user", content=source)]
    return [_read(item, f"input[{index}]") for index, item in enumerate(source)]


def text_of(item: Item) -> str:
    """Return the text of a kept message or of what came of a call; parts are joined by line breaks."""
    content = item["content"] if item["type"] == "message" else item["output"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def input_id(kind: str, response_id: str, number: int) -> str:
    """Return the id of an item that came in without one."""
    prefix = {"function_call": "fc", "function_call_output": "fco"}.get(kind, "msg")
    return f"{prefix}_{response_id.removeprefix('resp_')}i{number:03x}"


def is_response_id(text: str) -> bool:
    """Tell whether a response may have this id."""
    return _RESPONSE_ID.fullmatch(text) is not None


def home_of(item_id: str) -> str | None:
    """Return the id of the response that gave an item its id, None where it is not one of ours."""
    match = _ITEM_ID.fullmatch(item_id)
    return None if match is None else f"resp_{match[1]}"


def _read(item: Mapping[str, Any], place: str) -> Given:
    named = item.get("type")
    kind = named if named is not None else "message" if "role" in item else "item_reference"
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadRequest(
            f"`{place}.type` is {str(kind)[:80]!r}: items of the kinds {', '.join(_KINDS)} are served",
            param=f"{place}.type",
        )
    try:
        return convert(item, _KINDS[kind], {})
    except BadRequest as error:
        param = f"{place}.{error.param}" if error.param else place
        message = error.message.replace(f"`{error.param}`", f"`{param}`", 1) if error.param else error.message
        raise BadRequest(message, param=param, code=error.error_code) from error
