"""Errors of the OpenAI surface, and their one mapping to bodies.

ApiError                    {"error": {message, type, param, code}} under `status`
├── BadRequest          400 the client's request is wrong; `param` names the field
│   └── ContextTooLong  400 context_length_exceeded
├── InvalidKey          401 invalid_api_key
├── Forbidden           403 the key is right, the place or the page it comes from is not
├── NotFound            404 unknown path
│   └── ModelNotFound   404 also for a model hidden from the tenant
├── MethodNotAllowed    405
├── BodyTooSlow         408 the body didn't come within its time
├── IdempotencyKeyInUse 409 the same request is still being served
├── BodyTooLarge        413
├── UnsupportedEncoding 415 the body is compressed
├── IdempotencyKeyReused 422 another request has the key
├── UpgradeRequired     426 a plain request where a websocket is
├── RateLimited         429 rate_limit_exceeded, with the time to wait
├── InternalError       500 a defect of ours
├── WorkerFailed        502 the worker died under the request
└── Overloaded          503 server_is_overloaded: nothing can serve it now, a later try may
ClientLeft                  nobody is there to read an answer; never sent

docs/api/errors.md is made of these classes: what their docstrings say, `fix` and `codes`.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from engine.protocol import pb
from gateway.workers.errors import GenerationFailed, Refused, SlowConsumer, WorkerError

MAX_MESSAGE = 600  # characters: a message may quote the client, who may have sent megabytes

Headers = list[tuple[bytes, bytes]]


class ClientLeft(Exception):
    """The client closed its connection."""


class ApiError(Exception):
    """An answer other than 2xx. `headers` are added to the response.

    A class's docstring says when it comes, in words for its reader.
    """

    status: ClassVar[int] = 500
    type: str = "server_error"
    code: ClassVar[str | None] = None
    fix: ClassVar[str] = ""  # what a client does about it
    codes: ClassVar[Mapping[str, str]] = {}  # what else than `code` it may carry, and what each says

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        self.param = param if param is None or len(param) <= MAX_MESSAGE else param[:MAX_MESSAGE] + "…"
        self.error_code = code if code is not None else self.code
        self.headers: Headers = []

    def body(self) -> dict[str, object]:
        """Return OpenAI's error body."""
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.error_code},
        }

    def json(self) -> bytes:
        """Return the body, encoded."""
        return msgspec.json.encode(self.body())


class BadRequest(ApiError):
    """The request is malformed or asks for what isn't supported."""

    status = 400
    type = "invalid_request_error"
    fix = "Change the field that `param` names as `message` says. The same request fails again."
    codes: ClassVar[Mapping[str, str]] = {
        "unknown_field": "a field that isn't part of this API; none is ever ignored",
        "missing_field": "a field that is needed",
        "no_chat_template": "the model has no chat form: use `/v1/completions`",
        "no_embeddings": "the model makes no embeddings",
        "kv_limit_exceeded": "the request can never fit the tenant's hard limit of KV memory",
        "max_output_exceeded": "more output was asked for than the tenant's policy allows",
        "previous_response_not_found": "there is no such response to go on from",
        "response_too_large": "what would have to be stored is too large: shorten it, or set `store` to false",
        "client_too_slow": "in a stream: its reader fell so far behind that it was ended",
        "unknown_event": "websocket: `type` is no event of a client's",
        "event_too_large": "websocket: the event is too long",
        "too_many_responses": "websocket: as many responses run on this socket as may",
        "too_many_prefetches": "websocket: more prefetches in a minute than one socket may ask for",
        "response_not_found": "websocket: no such response is running",
        "response_cancel_not_active": "websocket: no response is running at all",
        "item_not_found": "websocket: the conversation has no such item",
        "conversation_full": "websocket: the conversation has as many items as one may, or takes as much memory",
        "session_full": "websocket: the session's defaults are larger than they may be",
        "too_much_held": "websocket: the tenant's sockets hold as much as they may together",
        "binary_frame": "websocket: a frame that isn't text; the socket is closed",
    }


class ContextTooLong(BadRequest):
    """Prompt and output don't fit the context of the model or of the tenant's policy."""

    code = "context_length_exceeded"
    fix = "Shorten the prompt, or ask for less output."
    codes: ClassVar[Mapping[str, str]] = {}


class InvalidKey(ApiError):
    """The key is missing, malformed, unknown, revoked or expired."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"
    fix = "Send a key that the console shows as active: `Authorization: Bearer tg_live_…`."


class Forbidden(ApiError):
    """The caller is known and may not do this from here."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"
    fix = "Use another key, or have this one's scopes or addresses changed in the console."
    codes: ClassVar[Mapping[str, str]] = {
        "insufficient_scope": "the key lacks the scope that `message` names",
        "ip_not_authorized": "the key may not be used from this address",
    }


class NotFound(ApiError):
    """There is no such path or object."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"
    fix = "Check the path, or the id in it."
    codes: ClassVar[Mapping[str, str]] = {
        "session_not_found": "no worker has such a session of yours",
        "response_not_found": "no such response of your project is stored",
    }


class ModelNotFound(NotFound):
    """There is no such model, or not for this key."""

    code = "model_not_found"
    fix = "Take a name that `GET /v1/models` lists."
    codes: ClassVar[Mapping[str, str]] = {}

    def __init__(self, model: str) -> None:
        super().__init__(f"The model `{model[:200]}` does not exist or you do not have access to it.", param="model")


class MethodNotAllowed(ApiError):
    """The path exists, not with this method."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"
    fix = "Use the method that the documentation names."


class BodyTooSlow(ApiError):
    """The request's body did not come within its time."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"
    fix = "Send it again, over a better connection or smaller."


class IdempotencyKeyInUse(ApiError):
    """The request that has this `Idempotency-Key` is still being served."""

    status = 409
    type = "idempotency_error"
    code = "idempotency_key_in_use"
    fix = "Try again after `retry-after-ms`: the answer is kept when it is there. SDKs do so by themselves."

    def __init__(self, message: str, *, wait_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.headers += retry_headers(wait_seconds)


class IdempotencyKeyReused(ApiError):
    """Another request has this `Idempotency-Key`: a key belongs to one path and one body, byte for byte."""

    status = 422
    type = "idempotency_error"
    code = "idempotency_key_reused"
    fix = "Send a new key with each new request, and the same one only with the same request."


class BodyTooLarge(ApiError):
    """The request's body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"
    fix = "Send less text."


class UnsupportedEncoding(ApiError):
    """The request's body is compressed."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_encoding"
    fix = "Send it uncompressed, without `Content-Encoding`."


class UpgradeRequired(ApiError):
    """The path is a websocket's, and the request is none."""

    status = 426
    type = "invalid_request_error"
    code = "upgrade_required"
    fix = "Connect with a websocket; where one was meant, have the proxy in between pass `Upgrade` on."

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers += [(b"upgrade", b"websocket"), (b"connection", b"upgrade, close")]


class RateLimited(ApiError):
    """A limit of requests or tokens a minute is used up, or the tenant's queue is full.

    `wait_seconds` until a try can succeed, None where none ever can.
    """

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    fix = (
        "Wait as long as `retry-after-ms` says, then send it again. `x-should-retry: false` says that no wait helps: "
        "the prompt alone is over the limit."
    )
    codes: ClassVar[Mapping[str, str]] = {
        "too_many_bodies": "the bodies of the tenant's other requests take all the room that it has",
        "too_many_connections": "the key or the tenant has as many websockets open as it may",
    }

    def __init__(self, message: str, *, wait_seconds: float | None) -> None:
        super().__init__(message)
        if wait_seconds is None:
            self.headers.append((b"x-should-retry", b"false"))
        else:
            self.headers += retry_headers(wait_seconds)


class InternalError(ApiError):
    """A defect of ours; the log has it under the request id."""

    fix = "Send it again; tell the operator the `x-request-id` where it stays."

    def __init__(self) -> None:
        super().__init__("The server had an error while processing your request. Quote the x-request-id to support.")


class WorkerFailed(ApiError):
    """The worker failed while it served the request."""

    status = 502
    code = "worker_failed"
    fix = "Send it again: another worker, or the same one restarted, takes it."


class Overloaded(ApiError):
    """Nothing can serve the request now: the server restarts, or no worker can be reached."""

    status = 503
    code = "server_is_overloaded"
    fix = "Wait as long as `retry-after-ms` says, then send it again."

    def __init__(self, message: str, *, wait_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.headers += retry_headers(wait_seconds)


def retry_headers(wait_seconds: float) -> Headers:
    """Return `retry-after-ms` and `retry-after` (whole seconds, at least 1) for a wait."""
    milliseconds = max(1, math.ceil(wait_seconds * 1000))
    return [
        (b"retry-after-ms", str(milliseconds).encode()),
        (b"retry-after", str(max(1, math.ceil(wait_seconds))).encode()),
    ]


def from_worker(error: WorkerError) -> ApiError:
    """Map what a worker or its connection reported."""
    if isinstance(error, Refused):
        return _from_refusal(error)
    if isinstance(error, SlowConsumer):
        return BadRequest(str(error), code="client_too_slow")
    if isinstance(error, GenerationFailed):
        return WorkerFailed(f"The worker failed while it generated: {error}. Try again.")
    return Overloaded(f"{error}. Try again in a moment.")


def _from_refusal(refused: Refused) -> ApiError:
    code, message = refused.code, str(refused)
    param = refused.field or None
    if code == pb.REFUSAL_CODE_CONTEXT_TOO_LONG:
        return ContextTooLong(message, param=param)
    if code == pb.REFUSAL_CODE_KV_LIMIT:
        return BadRequest(message, param=param, code="kv_limit_exceeded")
    if code == pb.REFUSAL_CODE_INVALID:
        return BadRequest(message, param=param)
    if code == pb.REFUSAL_CODE_QUEUE_FULL:
        return RateLimited(message, wait_seconds=1.0)
    return Overloaded(message or "The worker takes nothing new")
