"""What `/v1/responses` answers, as types, for the OpenAPI document. Tests hold real answers against them."""

from typing import Any, Literal

from msgspec import Struct

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TopLogprob(Struct):
    """A token that was likely at a place."""

    token: str
    logprob: float
    bytes: list[int] | None


class Logprob(TopLogprob):
    """A token of the text, its natural log-probability, and the likeliest ones at its place."""

    top_logprobs: list[TopLogprob]


class InputText(Struct, tag="input_text", tag_field="type"):
    """A text that went in."""

    text: str


class OutputText(Struct, tag="output_text", tag_field="type"):
    """A text that came out."""

    text: str
    annotations: list[Any]
    logprobs: list[Logprob]


class Message(Struct, tag="message", tag_field="type"):
    """A message."""

    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | OutputText]


class FunctionCall(Struct, tag="function_call", tag_field="type"):
    """A function that the model wants called; `arguments` is JSON."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(Struct, tag="function_call_output", tag_field="type"):
    """What came of a call."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[InputText]


class Error(Struct):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(Struct):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class InputDetails(Struct):
    """How much of the input was there already."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Struct):
    """How much of the output nobody sees."""

    reasoning_tokens: int


class Usage(Struct):
    """What a response cost, in tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Response(Struct):
    """A response: what was asked, and what came out."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    background: bool
    completed_at: int | None
    error: Error | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[Message | FunctionCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, None]
    safety_identifier: str | None
    service_tier: Literal["default", "flex", "priority"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: Usage | None
    user: str | None
    metadata: dict[str, str]


class ItemList(Struct):
    """A page of a response's input."""

    object: Literal["list"]
    data: list[Message | FunctionCall | FunctionCallOutput]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(Struct):
    """A response that is gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(Struct):
    """How many tokens a request's input has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class _OfResponse(Struct, tag_field="type", tag="response"):
    sequence_number: int
    response: Response


class Created(_OfResponse, tag="response.created"):
    """The first event."""


class Queued(_OfResponse, tag="response.queued"):
    """One in the background waits for a worker."""


class InProgress(_OfResponse, tag="response.in_progress"):
    """A worker has it."""


class Completed(_OfResponse, tag="response.completed"):
    """The last event: it is whole."""


class Incomplete(_OfResponse, tag="response.incomplete"):
    """The last event: it was cut off, or cancelled."""


class Failed(_OfResponse, tag="response.failed"):
    """The last event: it went wrong."""


class _OfItem(Struct, tag_field="type", tag="item"):
    sequence_number: int
    output_index: int


class ItemAdded(_OfItem, tag="response.output_item.added"):
    """An item begins."""

    item: Message | FunctionCall


class ItemDone(_OfItem, tag="response.output_item.done"):
    """An item is whole."""

    item: Message | FunctionCall


class _OfPart(_OfItem, tag="part"):
    item_id: str
    content_index: int


class PartAdded(_OfPart, tag="response.content_part.added"):
    """A message's text begins."""

    part: OutputText


class PartDone(_OfPart, tag="response.content_part.done"):
    """A message's text is whole."""

    part: OutputText


class TextDelta(_OfPart, tag="response.output_text.delta"):
    """More text. `obfuscation` hides how long it is, where that is asked for."""

    delta: str
    logprobs: list[Logprob]
    obfuscation: str = ""


class TextDone(_OfPart, tag="response.output_text.done"):
    """All of the text."""

    text: str
    logprobs: list[Logprob]


class ArgumentsDelta(_OfItem, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    delta: str
    obfuscation: str = ""


class ArgumentsDone(_OfItem, tag="response.function_call_arguments.done"):
    """All of a call's arguments."""

    item_id: str
    name: str
    arguments: str


Event = (
    Created
    | Queued
    | InProgress
    | ItemAdded
    | PartAdded
    | TextDelta
    | TextDone
    | ArgumentsDelta
    | ArgumentsDone
    | PartDone
    | ItemDone
    | Completed
    | Incomplete
    | Failed
)
