"""What a chat request says of tools, in OpenAI's words: those it offers, which it wants called, and calls gone by."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.formats import Name

MAX_TOOLS = 128
MAX_CALLS = 128  # in one message


class Function(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A function that the model may call. `parameters` is a JSON schema of its arguments; None: it takes none."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A tool that is a function: the only kind served."""

    function: Function


class FunctionName(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """The one function to be called."""

    function: FunctionName


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Those of the tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(msgspec.Struct, tag="allowed_tools", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A choice among some of the tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedToolChoice
Tools = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A call that the model made: `arguments` is what it wrote, JSON or not."""

    name: str
    arguments: str
    parsed_arguments: Any = None  # the SDKs' own reading of them, which they send back; nothing is made of it


class ToolCall(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A call in an assistant's message, which a message of the role `tool` answers under its id."""

    id: str
    function: CalledFunction
    index: int | None = None  # where a stream had it: calls that are put together by hand keep it; without effect

    def turn(self) -> dict[str, Any]:
        """Return the call as a chat template takes it."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


ToolCalls = Annotated[list[ToolCall], Meta(max_length=MAX_CALLS)]
