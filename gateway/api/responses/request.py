"""What a request for a response may say, strictly. What isn't served is refused by name, as on every surface."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api import functions
from gateway.api.decode import Off, Reader
from gateway.api.errors import BadRequest
from gateway.api.formats import Asked, Name, Schema, json_schema
from gateway.api.functions import MAX_TOOLS
from gateway.api.responses.items import MAX_ITEMS
from gateway.api.sampling import Sampling, StreamOptions, TokenCount, TopCount
from gateway.api.tools.checks import check_tools

LOGPROBS = "message.output_text.logprobs"

ResponseId = Annotated[str, Meta(min_length=1, max_length=128)]

_OF_A_TOOL = re.compile(r"tools\[\d+\]\.type")


class TextFormat(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """JSON that a schema describes. Every schema is kept to, whether `strict` or not."""

    name: Name
    schema: Schema
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the text is to be. There is one verbosity."""

    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None

    def asked(self) -> Asked | None:
        """Return what the output must be; None: it may be anything. Raises BadRequest where that is too long."""
        if isinstance(self.format, JsonSchemaFormat):
            return json_schema(self.format.schema, field="text.format")
        return json_schema(None, field="text.format") if isinstance(self.format, JsonObjectFormat) else None


class FunctionTool(
    msgspec.Struct,
    tag="function",
    tag_field="type",
    forbid_unknown_fields=True,
    frozen=True,
    rename={"is_async": "async"},
):
    """A function that the model may call: the only kind of tool served.

    The fields from `allowed_callers` on are what an SDK sends back with a response's tools, when they are off.
    """

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: None = None
    output_schema: None = None
    defer_loading: bool | None = None
    is_async: bool | None = None
    async_: bool | None = None  # the name that it has in the Python SDK's `model_dump()`

    def check(self, path: str) -> None:
        """Raise BadRequest where the tool, which stands at `path`, is to be what isn't served."""
        for name, given in (("async", self.is_async or self.async_), ("defer_loading", self.defer_loading)):
            if given:
                raise BadRequest(
                    f"`{path}.{name}` isn't supported other than false: leave it out", param=f"{path}.{name}"
                )


class NamedTool(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A function by its name."""

    name: str


class AllowedTools(msgspec.Struct, tag="allowed_tools", tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Those of the tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class ResponseRequest(Sampling, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/responses`. What `Sampling` has beside OpenAI's fields is served here as well.

    `max_tool_calls` counts calls of built-in tools, of which there are none: any number holds.
    """

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    max_output_tokens: TokenCount | None = None
    max_tool_calls: TokenCount | None = None
    text: TextConfig | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: TopCount | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    store: bool | None = None

    @property
    def limit(self) -> int:
        """Tokens of output asked for; 0: as many as limits allow."""
        return self.max_output_tokens or 0

    @property
    def stored(self) -> bool:
        """Whether the response is to be kept."""
        return self.store is not False

    @property
    def scored(self) -> bool:
        """Whether log-probabilities are asked for."""
        return LOGPROBS in (self.include or ())

    @property
    def chat_tools(self) -> list[functions.FunctionTool] | None:
        """The tools as the chat surface has them. As at OpenAI, one is strict unless it says otherwise."""
        if self.tools is None:
            return None
        return [
            functions.FunctionTool(
                functions.Function(tool.name, tool.description, tool.parameters, strict=tool.strict is not False)
            )
            for tool in self.tools
        ]

    @property
    def chat_choice(self) -> functions.ToolChoice | None:
        """The choice among them as the chat surface has it."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return _named(choice)
        if isinstance(choice, AllowedTools):
            allowed = functions.AllowedTools(choice.mode, [_named(tool) for tool in choice.tools])
            return functions.AllowedToolChoice(allowed)
        return choice

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        super().check()
        self._check_tools()
        check_include(self.include or ())
        for name, ours in (("max_tokens", "max_output_tokens"), ("response_format", "text.format")):
            if getattr(self, name) is not None:
                raise BadRequest(f"`{name}` is `{ours}` on this surface: write that", param=name)
        if self.text is not None and self.text.format is not None and self.format_fields:
            field = self.format_fields[0]
            raise BadRequest(f"`{field}` can't be combined with `text.format`: leave one of them out", param=field)
        if self.top_logprobs and not self.scored:
            raise BadRequest(f"`top_logprobs` needs `{LOGPROBS}` in `include`: put it there", param="top_logprobs")
        if self.background and not self.stored:
            raise BadRequest(
                "`background` needs `store`, because nobody waits for its answer: leave `store` out", param="store"
            )

    def _check_tools(self) -> None:
        for index, tool in enumerate(self.tools or ()):
            tool.check(f"tools[{index}]")
        try:
            check_tools(self.chat_tools, self.chat_choice)
        except BadRequest as error:  # of the chat surface, where a function is in a member of its own
            param = (error.param or "").replace(".function", "", 1).replace(".allowed_tools", "", 1)
            raise BadRequest(error.message.replace(f"`{error.param}`", f"`{param}`", 1), param=param) from error

    def _check_stream_options(self, options: StreamOptions) -> None:
        super()._check_stream_options(options)
        if options.include_usage is not None:
            field = "stream_options.include_usage"
            raise BadRequest(f"`{field}` isn't of this surface, whose last event has the usage", param=field)


def _named(tool: NamedTool) -> functions.NamedTool:
    return functions.NamedTool(functions.FunctionName(tool.name))


def check_include(include: Sequence[str]) -> None:
    """Raise BadRequest where `include` asks for what there isn't."""
    for index, name in enumerate(include):
        if name != LOGPROBS:
            raise BadRequest(
                f"`include[{index}]` is {name[:80]!r}: `{LOGPROBS}` is all that can be included",
                param=f"include[{index}]",
            )


OFF: Off = {
    "reasoning": ({},),
    "conversation": (),
    "prompt": (),
    "moderation": (),
    "context_management": ([],),
    "access_programs": (),
    "background_options": ({}, {"completion_window": "soonest"}),
    "image": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
}
_READER = Reader(ResponseRequest, OFF, long=("input", "instructions"))


def parse_response(body: bytes | bytearray) -> ResponseRequest:
    """Read a request for a response.

    Raises:
        BadRequest: names the field and the fix.
    """
    try:
        return _READER.read(body)
    except BadRequest as error:
        if error.param is None or not _OF_A_TOOL.fullmatch(error.param):
            raise
        raise BadRequest(
            f"{error.message}. There are no built-in tools here: offer functions of your own", param=error.param
        ) from error
