"""The JSON of a response and of what belongs to it. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.errors import ApiError
from gateway.api.responses.request import FunctionTool, ResponseRequest, TextConfig
from gateway.workers.generation import Finished


def head_of(request: ResponseRequest, *, response_id: str, created_at: int) -> dict[str, Any]:
    """Return a response's object without what comes out: all of OpenAI's fields, with what holds for this one.

    Args:
        request: what was asked.
        response_id: its id.
        created_at: unix seconds.
    """
    choice = "auto" if request.tool_choice is None else msgspec.to_builtins(request.tool_choice)
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": None,
        "background": bool(request.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": request.tier or "default",
        "store": request.stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": _text_of(request.text),
        "tool_choice": choice,
        "tools": [_tool_of(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata or {},
    }


def usage_of(end: Finished) -> dict[str, Any]:
    """Return OpenAI's usage of a response."""
    return {
        "input_tokens": end.prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": end.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": end.prompt_tokens + end.completion_tokens,
    }


def error_of(error: ApiError) -> dict[str, Any]:
    """Return the `error` of a failed response. OpenAI has three codes for what can happen here."""
    known = {429: "rate_limit_exceeded"}
    code = known.get(error.status, "invalid_prompt" if error.status < 500 else "server_error")
    return {"code": code, "message": error.message}


def without_scores(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without the log-probabilities of its texts."""
    return response | {"output": [_bare(item) for item in response["output"]]}


def item_list(items: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a page of items."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def _text_of(text: TextConfig | None) -> dict[str, Any]:
    given = None if text is None or text.format is None else msgspec.to_builtins(text.format)
    return {"format": given or {"type": "text"}, "verbosity": "medium"}


def _tool_of(tool: FunctionTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict is not False,
    }


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "message":
        return item
    return item | {"content": [part | {"logprobs": []} if "logprobs" in part else part for part in item["content"]]}
