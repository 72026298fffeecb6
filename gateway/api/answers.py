"""What `/v1` answers, as types: what the OpenAPI document says of answers. Tests hold every real answer against them.

A field without a default is always there. Fields may be added, so that clients must pass over what they don't know.
"""

from typing import Literal

from msgspec import Struct

Reason = Literal["stop", "length", "tool_calls"]


class CachedTokens(Struct):
    """How much of the prompt was there already."""

    cached_tokens: int


class Usage(Struct):
    """What a request cost, in tokens: its prompts once each, and all that was generated for them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TopLogprob(Struct):
    """A token that was likely at a place."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the output, its natural log-probability, and the likeliest ones at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob] | None
    refusal: list[TokenLogprob] | None = None


class FunctionCall(Struct):
    """A function that the model wants called; `arguments` is JSON."""

    name: str
    arguments: str


class ToolCall(Struct):
    """One call of a tool."""

    id: str
    function: FunctionCall
    type: Literal["function"]


class AnswerMessage(Struct):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[object]
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Struct):
    """One output of the conversation."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason


class ChatCompletion(Struct):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | None = None


class FunctionDelta(Struct):
    """A piece of a call: its name comes first, then its arguments bit by bit."""

    name: str | None = None
    arguments: str | None = None


class ToolDelta(Struct):
    """A piece of the call at `index`."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta | None = None


class ChatDelta(Struct):
    """What a chunk adds to its choice's message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolDelta] | None = None


class ChunkChoice(Struct):
    """What a chunk adds to one output."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Reason | None


class ChatChunk(Struct):
    """One event of a stream. With `include_usage` each says `usage: null` but the last, which has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    service_tier: str | None = None
    obfuscation: str | None = None  # pads the event, where that is asked for


class TextLogprobs(Struct):
    """Log-probabilities of a text's tokens, place by place. The first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Struct):
    """One output of a prompt, or in a stream what is added to it."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(Struct):
    """A whole answer."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage
    service_tier: str | None = None


class CompletionChunk(Struct):
    """One event of a stream. `usage` is as in a chat's."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | None = None
    service_tier: str | None = None
    obfuscation: str | None = None


class Embedding(Struct):
    """A vector; with `base64` its float32 numbers, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    """What embeddings cost, in tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """A vector for each input, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class ModelCard(Struct):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Struct):
    """The models that the key may use."""

    object: Literal["list"]
    data: list[ModelCard]


class MissingWorker(Struct):
    """A worker whose sessions aren't told, and why."""

    worker: str
    reason: str


class SessionCopy(Struct, kw_only=True):
    """What one worker keeps of a session. Times are unix seconds; `expires_at` null: it is pinned."""

    model: str
    worker: str
    num_tokens: int
    num_turns: int
    tier: Literal["device", "host", "disk"] | None
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    created_at: float
    last_used_at: float
    expires_at: float | None
    pinned: bool
    active: bool


class ListedSession(SessionCopy, kw_only=True):
    """A session as the copy that was used last has it, and all copies."""

    id: str
    object: Literal["session"]
    copies: list[SessionCopy]


class Session(ListedSession, kw_only=True):
    """One session."""

    missing_workers: list[MissingWorker]


class SessionList(Struct):
    """A page of sessions."""

    object: Literal["list"]
    data: list[ListedSession]
    has_more: bool
    next_after: str | None
    num_sessions: int
    missing_workers: list[MissingWorker]


class SessionErased(Struct):
    """What has become of a session that is to be erased: a worker that is away has yet to do it."""

    id: str
    object: Literal["session.deleted"]
    deleted: bool
    waiting_for: list[MissingWorker]
