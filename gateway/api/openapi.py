"""`GET /v1/openapi.json`: the OpenAPI document of `/v1`, made of the Structs that requests are read with.

operations.py   what there is: paths, their requests, answers and errors
answers.py      answers as types
catalogue.py    errors as tables, of the same classes
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.catalogue import codes_of, when
from gateway.api.decode import Off
from gateway.api.errors import ApiError
from gateway.api.operation import Operation, Parameter
from gateway.api.operations import OPERATIONS

Json = dict[str, Any]

_PREFIX = "#/components/schemas/"
_INFO: Json = {
    "title": "Tollgate",
    "version": "1",
    "description": (
        "OpenAI's API over models that run here: point an OpenAI SDK at `/v1`. A field that isn't named here is "
        "refused with a 400 that names it; none is ever ignored. `/v1/realtime` is a websocket, which OpenAPI can't "
        "describe."
    ),
}
_REQUEST_ID: Json = {
    "x-request-id": {"description": "quote it to support", "required": True, "schema": {"type": "string"}}
}
_WAIT: Json = {
    "retry-after-ms": {"description": "milliseconds until a try can succeed", "schema": {"type": "string"}},
    "retry-after": {"description": "the same in whole seconds", "schema": {"type": "string"}},
}
_RATES: Json = {
    f"x-ratelimit-{what}-{unit}": {
        "description": f"where a limit of {unit} a minute holds: {meaning}",
        "schema": {"type": "string"},
    }
    for unit in ("requests", "tokens")
    for what, meaning in (("limit", "the limit"), ("remaining", "what is left of it"), ("reset", "until it is full"))
}


class Document:
    """An ASGI application that serves the document, encoded once: it holds nothing of a tenant's and needs no key."""

    def __init__(self) -> None:
        body = msgspec.json.encode(document())
        self._response = Response(body, headers={"cache-control": "no-cache"}, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._response(scope, receive, send)


def document(operations: tuple[Operation, ...] = OPERATIONS) -> Json:
    """Return the OpenAPI 3.1 document of these operations."""
    kinds = list(dict.fromkeys(kind for operation in operations for kind in operation.kinds))
    schemas, components = msgspec.json.schema_components(kinds, schema_hook=_anything, ref_template=_PREFIX + "{name}")
    named = dict(zip(kinds, schemas, strict=True))
    for operation in operations:
        if operation.request is not None:
            name = named[operation.request]["$ref"].rsplit("/", 1)[1]
            components[name]["properties"] |= _off_properties(operation.off)
    paths: Json = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, named)
    whole: Json = {
        "openapi": "3.1.0",
        "info": _INFO,
        "servers": [{"url": "/"}],
        "security": [{"apiKey": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": {_short(name): components[name] for name in sorted(components)},
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "description": "tg_live_…"}},
        },
    }
    portable: Json = _portable(whole)
    return portable


def _operation(operation: Operation, named: Mapping[Any, Json]) -> Json:
    answer: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation, named),
    }
    if operation.parameters:
        answer["parameters"] = [_parameter(one) for one in operation.parameters]
    if operation.request is not None:
        content = {"application/json": {"schema": named[operation.request]}}
        answer["requestBody"] = {"required": True, "content": content}
    return answer


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _responses(operation: Operation, named: Mapping[Any, Json]) -> Json:
    responses: Json = {}
    for status, kind in operation.answers.items():
        content: Json = {"application/json": {"schema": named[kind]}}
        description = "what was asked for"
        if status == 200 and operation.event is not None:
            content["text/event-stream"] = {"schema": _event_schema(named[operation.event])}
            description += "; with `stream` its events"
        headers = _REQUEST_ID | (_RATES if operation.is_limited else {})
        responses[str(status)] = {"description": description, "headers": headers, "content": content}
    for status in sorted({kind.status for kind in operation.errors}):
        responses[str(status)] = _error(status, [kind for kind in operation.errors if kind.status == status])
    return responses


def _event_schema(told: Json) -> Json:
    """Return the schema of one server-sent event: `schema` of a stream is its events', until OpenAPI 3.2 says it so."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": told}
    fields = {"data": {"anyOf": [{"const": "[DONE]"}, data]}, "event": {"type": "string"}}
    return {"type": "object", "required": ["data"], "properties": fields}


def _error(status: int, kinds: list[type[ApiError]]) -> Json:
    """Return the response of one status; the body says which codes it may have."""
    codes = sorted({code for kind in kinds for code in codes_of(kind) if code is not None})
    may_be_null: list[str | None] = [None] if any(kind.code is None for kind in kinds) else []
    return {
        "description": " ".join(dict.fromkeys(when(kind) for kind in kinds)),
        "headers": _REQUEST_ID | (_WAIT if status in (429, 503) else {}) | (_RATES if status == 429 else {}),
        "content": {"application/json": {"schema": _error_schema([*codes, *may_be_null])}},
    }


def _error_schema(codes: list[str | None]) -> Json:
    fields: Json = {
        "message": {"type": "string", "description": "for people: what is wrong and how to put it right"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"], "description": "the field that it is about"},
        "code": {"enum": codes, "description": "for programs"},
    }
    return {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "object", "required": list(fields), "properties": fields}},
    }


def _off_properties(off: Off) -> Json:
    """Return the fields of OpenAI's that must be at their default, as properties that allow that alone."""
    return dict(_off_property(name, allowed) for name, allowed in off.items())


def _off_property(name: str, allowed: tuple[object, ...]) -> tuple[str, Json]:
    return name, {"enum": [*allowed, None], "description": "of OpenAI's API; accepted at these values alone"}


def _portable(part: Any) -> Any:
    r"""Return a part of the document as any reader of it wants it.

    Patterns end with `$`, where Python's end in `\Z`; Structs of one name are told apart by their file's name.
    """
    if isinstance(part, dict):
        return {key: _pattern(value) if key == "pattern" else _portable(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_portable(one) for one in part]
    return _PREFIX + _short(part.removeprefix(_PREFIX)) if isinstance(part, str) and part.startswith(_PREFIX) else part


def _pattern(pattern: Any) -> Any:
    is_pythons = isinstance(pattern, str) and pattern.endswith(r"\Z")
    return pattern.removesuffix(r"\Z") + "$" if is_pythons else _portable(pattern)


def _short(name: str) -> str:
    """Return `FunctionsNamedTool` for `gateway.api.functions.NamedTool`, which has a namesake."""
    *modules, struct = name.removeprefix("gateway.api.").split(".")
    return "".join(module.title().replace("_", "") for module in modules) + struct


def _anything(kind: type) -> Json:
    """Describe `object`, which msgspec has no schema for."""
    assert kind is object, kind
    return {"description": "anything"}
