"""The operations of `/v1`: what the OpenAPI document describes. A route that is missing here fails a test."""

from gateway.api import answers, embeddings, schemas, tokens
from gateway.api.errors import (
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    ContextTooLong,
    Forbidden,
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    InternalError,
    InvalidKey,
    ModelNotFound,
    NotFound,
    Overloaded,
    RateLimited,
    UnsupportedEncoding,
    WorkerFailed,
)
from gateway.api.operation import Errors, Operation, Parameter
from gateway.api.responses import answers as responses
from gateway.api.responses import request as response_requests

ALWAYS: Errors = (InvalidKey, Forbidden, Overloaded, InternalError)
WITH_A_BODY: Errors = (*ALWAYS, BadRequest, BodyTooSlow, BodyTooLarge, UnsupportedEncoding, RateLimited)
GENERATING: Errors = (*WITH_A_BODY, ContextTooLong, ModelNotFound, WorkerFailed)
ONCE: Errors = (*GENERATING, IdempotencyKeyInUse, IdempotencyKeyReused)
OF_SESSIONS: Errors = (*ALWAYS, BadRequest, NotFound, RateLimited)

_KEY = Parameter(
    "Idempotency-Key",
    "header",
    "a request that comes again under this key gets the answer of the first time",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
)
_MODEL = Parameter("model", "path", "an id that the list has", {"type": "string", "minLength": 1})
_SESSION = Parameter(
    "session", "path", "the session's id, percent-encoded", {"type": "string", "minLength": 1, "maxLength": 256}
)
_RESPONSE = Parameter("response_id", "path", "the response's id", {"type": "string", "minLength": 1})
_INCLUDE = Parameter(
    "include", "query", "what else to show", {"type": "array", "items": {"enum": [response_requests.LOGPROBS]}}
)
_SESSIONS_PAGE = (
    Parameter("limit", "query", "sessions of a page", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    Parameter("after", "query", "`next_after` of the page before", {"type": "string"}),
)
_ITEMS_PAGE = (
    Parameter("limit", "query", "items of a page", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    Parameter("order", "query", "the newest first, or last", {"enum": ["asc", "desc"], "default": "desc"}),
    Parameter("after", "query", "`last_id` of the page before", {"type": "string"}),
    _INCLUDE,
)
_STREAMED_AGAIN = (
    _INCLUDE,
    Parameter("stream", "query", "as events: of one in the background", {"type": "boolean"}),
    Parameter("starting_after", "query", "the number of the last event that was seen", {"type": "integer"}),
    Parameter("include_obfuscation", "query", "pad each event", {"type": "boolean"}),
)

_GENERATION = (
    Operation(
        method="POST",
        path="/v1/chat/completions",
        id="create_chat_completion",
        tag="chat",
        summary="Answer a conversation",
        parameters=(_KEY,),
        request=schemas.ChatRequest,
        off=schemas.CHAT_OFF,
        answers={200: answers.ChatCompletion},
        event=answers.ChatChunk,
        errors=ONCE,
        is_limited=True,
    ),
    Operation(
        method="POST",
        path="/v1/completions",
        id="create_completion",
        tag="completions",
        summary="Continue one or several prompts",
        parameters=(_KEY,),
        request=schemas.CompletionRequest,
        off=schemas.COMPLETION_OFF,
        answers={200: answers.Completion},
        event=answers.CompletionChunk,
        errors=ONCE,
        is_limited=True,
    ),
    Operation(
        method="POST",
        path="/v1/embeddings",
        id="create_embeddings",
        tag="embeddings",
        summary="Turn texts into vectors of unit length",
        request=embeddings.EmbeddingRequest,
        off=embeddings.EMBEDDING_OFF,
        answers={200: answers.EmbeddingList},
        errors=GENERATING,
        is_limited=True,
    ),
)

_RESPONSES = (
    Operation(
        method="POST",
        path="/v1/responses",
        id="create_response",
        tag="responses",
        summary="Create a response",
        parameters=(_KEY,),
        request=response_requests.ResponseRequest,
        off=response_requests.OFF,
        answers={200: responses.Response},
        event=responses.Event,
        errors=ONCE,
        is_limited=True,
    ),
    Operation(
        method="POST",
        path="/v1/responses/input_tokens",
        id="count_input_tokens",
        tag="responses",
        summary="Say how many tokens a request's input has",
        request=response_requests.ResponseRequest,
        off=response_requests.OFF,
        answers={200: responses.InputTokens},
        errors=GENERATING,
        is_limited=True,
    ),
    Operation(
        method="GET",
        path="/v1/responses/{response_id}",
        id="retrieve_response",
        tag="responses",
        summary="Show a stored response, or stream one in the background",
        parameters=(_RESPONSE, *_STREAMED_AGAIN),
        answers={200: responses.Response},
        event=responses.Event,
        errors=(*ALWAYS, BadRequest, NotFound, RateLimited),
    ),
    Operation(
        method="DELETE",
        path="/v1/responses/{response_id}",
        id="delete_response",
        tag="responses",
        summary="Delete a stored response",
        parameters=(_RESPONSE,),
        answers={200: responses.Deleted},
        errors=(*ALWAYS, NotFound, RateLimited),
    ),
    Operation(
        method="POST",
        path="/v1/responses/{response_id}/cancel",
        id="cancel_response",
        tag="responses",
        summary="Cancel a response in the background",
        parameters=(_RESPONSE,),
        answers={200: responses.Response},
        errors=(*ALWAYS, BadRequest, NotFound, RateLimited),
    ),
    Operation(
        method="GET",
        path="/v1/responses/{response_id}/input_items",
        id="list_input_items",
        tag="responses",
        summary="List what a response had for its context",
        parameters=(_RESPONSE, *_ITEMS_PAGE),
        answers={200: responses.ItemList},
        errors=(*ALWAYS, BadRequest, NotFound, RateLimited),
    ),
)

_TOKENS = (
    Operation(
        method="POST",
        path="/v1/tokenize",
        id="tokenize",
        tag="tokens",
        summary="Turn a text, or a conversation, into token ids",
        request=tokens.TokenizeRequest,
        off=tokens.TOKENIZE_OFF,
        answers={200: tokens.Tokens},
        errors=(*WITH_A_BODY, ModelNotFound),
        is_limited=True,
    ),
    Operation(
        method="POST",
        path="/v1/detokenize",
        id="detokenize",
        tag="tokens",
        summary="Turn token ids into their text",
        request=tokens.DetokenizeRequest,
        answers={200: tokens.Text},
        errors=(*WITH_A_BODY, ModelNotFound),
        is_limited=True,
    ),
)

_MODELS = (
    Operation(
        method="GET",
        path="/v1/models",
        id="list_models",
        tag="models",
        summary="List the models that the key may use",
        answers={200: answers.ModelList},
        errors=ALWAYS,
    ),
    Operation(
        method="GET",
        path="/v1/models/{model}",
        id="retrieve_model",
        tag="models",
        summary="Show one model",
        parameters=(_MODEL,),
        answers={200: answers.ModelCard},
        errors=(*ALWAYS, NotFound, ModelNotFound),
    ),
)


def _session_action(action: str, summary: str) -> Operation:
    return Operation(
        method="POST",
        path=f"/v1/sessions/{{session}}/{action}",
        id=f"{action}_session",
        tag="sessions",
        summary=summary,
        parameters=(_SESSION,),
        answers={200: answers.Session},
        errors=OF_SESSIONS,
    )


_SESSIONS = (
    Operation(
        method="GET",
        path="/v1/sessions",
        id="list_sessions",
        tag="sessions",
        summary="List the tenant's sessions, the last used first",
        parameters=_SESSIONS_PAGE,
        answers={200: answers.SessionList},
        errors=OF_SESSIONS,
    ),
    Operation(
        method="GET",
        path="/v1/sessions/{session}",
        id="retrieve_session",
        tag="sessions",
        summary="Show what of a session is kept, and where",
        parameters=(_SESSION,),
        answers={200: answers.Session},
        errors=OF_SESSIONS,
    ),
    Operation(
        method="DELETE",
        path="/v1/sessions/{session}",
        id="delete_session",
        tag="sessions",
        summary="Erase a session from every tier",
        parameters=(_SESSION,),
        answers={200: answers.SessionErased, 202: answers.SessionErased},
        errors=OF_SESSIONS,
    ),
    _session_action("pin", "Keep a session until it is unpinned"),
    _session_action("unpin", "Let a session expire again"),
    _session_action("prefetch", "Bring a session's KV up to the device"),
)

OPERATIONS: tuple[Operation, ...] = (*_GENERATION, *_RESPONSES, *_TOKENS, *_MODELS, *_SESSIONS)
