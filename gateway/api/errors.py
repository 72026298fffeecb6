"""Errors of the OpenAI surface, and their one mapping to bodies.

ApiError                 {"error": {message, type, param, code}} under `status`
├── BadRequest       400 the client's request is wrong; `param` names the field
├── ContextTooLong   400 context_length_exceeded
├── InvalidKey       401 invalid_api_key
├── Forbidden        403 the key is right, the place or the page it comes from is not
├── ModelNotFound    404 also for a model hidden from the tenant
├── NotFound         404 unknown path
├── MethodNotAllowed 405
├── BodyTooSlow      408 the body didn't come within its time
├── BodyTooLarge     413
├── RateLimited      429 rate_limit_exceeded, with the time to wait
├── WorkerFailed     502 the worker died under the request
├── Overloaded       503 server_is_overloaded: nothing can serve it now, a later try may
└── InternalError    500 a defect of ours
ClientLeft               nobody is there to read an answer; never sent
"""

import math
from typing import ClassVar

import msgspec

from engine.protocol import pb
from gateway.workers.errors import GenerationFailed, Refused, SlowConsumer, WorkerError

MAX_MESSAGE = 600  # characters: a message may quote the client, who may have sent megabytes

Headers = list[tuple[bytes, bytes]]


class ClientLeft(Exception):
    """The client closed its connection."""


class ApiError(Exception):
    """An answer other than 2xx. `headers` are added to the response."""

    status: ClassVar[int] = 500
    type: str = "server_error"
    code: ClassVar[str | None] = None

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


class ContextTooLong(BadRequest):
    """Prompt and output don't fit the context."""

    code = "context_length_exceeded"


class InvalidKey(ApiError):
    """The key is missing, malformed, unknown, revoked or expired."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(ApiError):
    """The caller is known and may not do this from here."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class NotFound(ApiError):
    """No such path."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No such model, or not for this tenant."""

    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model `{model[:200]}` does not exist or you do not have access to it.", param="model")


class MethodNotAllowed(ApiError):
    """The path exists, not with this method."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class BodyTooSlow(ApiError):
    """The request's body did not come within its time."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class BodyTooLarge(ApiError):
    """The request's body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class UnsupportedEncoding(ApiError):
    """The request's body is compressed."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_encoding"


class RateLimited(ApiError):
    """A limit is used up; `wait_seconds` until a try can succeed, None where none ever can."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, wait_seconds: float | None) -> None:
        super().__init__(message)
        if wait_seconds is None:
            self.headers.append((b"x-should-retry", b"false"))
        else:
            self.headers += retry_headers(wait_seconds)


class WorkerFailed(ApiError):
    """The worker failed while it served the request."""

    status = 502
    code = "worker_failed"


class Overloaded(ApiError):
    """Nothing can serve the request now."""

    status = 503
    code = "server_is_overloaded"

    def __init__(self, message: str, *, wait_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.headers += retry_headers(wait_seconds)


class InternalError(ApiError):
    """A defect of ours; the log has it under the request id."""

    def __init__(self) -> None:
        super().__init__("The server had an error while processing your request. Quote the x-request-id to support.")


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
