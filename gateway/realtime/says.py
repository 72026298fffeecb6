"""The events that the server says over `/v1/realtime`. Pure."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.protocol import pb
from gateway.admission.admit import Rate
from gateway.api.errors import ApiError
from gateway.workers.generation import Finished

_encode = msgspec.json.Encoder().encode


def event(kind: str, **fields: object) -> str:
    """Return an event, encoded."""
    return _encode({"type": kind, "event_id": f"event_{uuid.uuid4().hex}", **fields}).decode()


def error_event(error: ApiError, event_id: str | None) -> str:
    """Return an `error` that names the client's event."""
    body = error.body()["error"]
    assert isinstance(body, dict)
    return event("error", error={**body, "event_id": event_id})


def rate_limits(rates: Sequence[Rate]) -> str:
    """Return `rate_limits.updated`; a limit that isn't set isn't told."""
    told = [
        {
            "name": rate.unit,
            "limit": rate.limit,
            "remaining": rate.remaining,
            "reset_seconds": round(rate.reset_seconds, 3),
        }
        for rate in rates
    ]
    return event("rate_limits.updated", rate_limits=told)


def response_object(head: Mapping[str, Any], status: str, output: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return a response. `head`: what it has from its beginning on."""
    return {**head, "status": status, "status_details": None, "output": list(output), "usage": None}


def is_complete(end: Finished) -> bool:
    """Whether a response said all that it would; else a limit of tokens ended it."""
    return end.reason == pb.FINISH_REASON_STOP


def finished(head: Mapping[str, Any], output: Sequence[dict[str, Any]], end: Finished) -> dict[str, Any]:
    """Return a response that ran to its end: `completed`, or `incomplete` where a limit of tokens ended it."""
    complete = is_complete(end)
    details = None if complete else {"type": "incomplete", "reason": "max_output_tokens"}
    usage = {
        "input_tokens": end.prompt_tokens,
        "output_tokens": end.completion_tokens,
        "total_tokens": end.prompt_tokens + end.completion_tokens,
        "input_token_details": {"cached_tokens": end.cached_tokens},
    }
    return response_object(head, "completed" if complete else "incomplete", output) | {
        "status_details": details,
        "usage": usage,
    }


def cancelled(head: Mapping[str, Any], output: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a response that its client cancelled, with what it had said."""
    details = {"type": "cancelled", "reason": "client_cancelled"}
    return response_object(head, "cancelled", output) | {"status_details": details}


def failed(head: Mapping[str, Any], output: Sequence[dict[str, Any]], error: ApiError) -> dict[str, Any]:
    """Return a response that failed, with what it had said."""
    details = {"type": "failed", "error": error.body()["error"]}
    return response_object(head, "failed", output) | {"status_details": details}
