"""The one shape of errors: `{"error": {"message", "type", "param", "code"}}`, and what maps to which status."""

from collections.abc import Iterator
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import set_rollback

from tenants.errors import Conflict, Forbidden, Invalid, NotFound, StaleVersion, TenantsError

log = structlog.get_logger(__name__)

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 409: "conflict_error"}


class PreconditionRequired(exceptions.APIException):
    """A change that needs `If-Match` came without."""

    status_code = status.HTTP_428_PRECONDITION_REQUIRED
    default_code = "precondition_required"


def body(message: str, code: str, *, http_status: int, param: str | None = None) -> dict[str, Any]:
    """Return an error in its one shape."""
    kind = "server_error" if http_status >= 500 else _TYPES.get(http_status, "invalid_request_error")
    shown = None if param is None else _writable(param)
    return {"error": {"message": _writable(message), "type": kind, "param": shown, "code": code}}


def _writable(text: str) -> str:
    """Return a text that may repeat a client's field name, without what UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Turn whatever a view raised into a response; what nobody foresaw is logged with its trace and is a 500."""
    set_rollback()
    if isinstance(error, TenantsError):
        return _domain(error)
    if isinstance(error, Http404):
        error = exceptions.NotFound("There is nothing here.")
    elif isinstance(error, DjangoPermissionDenied):
        error = exceptions.PermissionDenied()
    if isinstance(error, exceptions.APIException):
        return _framework(error)
    if isinstance(error, OperationalError | InterfaceError):
        log.warning("management_api_without_database", reason=str(error))
        response = _respond("The database is away. Try again.", "database_away", 503)
        response["Retry-After"] = "2"
        return response
    log.exception("management_api_failed", exc_info=error, view=type(context.get("view")).__name__)
    return _respond("The server made a mistake; its log has the details.", "internal_error", 500)


@csrf_exempt  # it changes nothing, and a client of the API wants JSON
def not_found(request: HttpRequest) -> JsonResponse:
    """Answer for a path that does not exist."""
    message = f"There is no {request.path}; paths end in a slash and are listed at /api/docs/."
    return JsonResponse(body(message, "not_found", http_status=404), status=404)


def _domain(error: TenantsError) -> Response:
    if isinstance(error, Invalid):
        return _respond(error.message, "invalid_value", 400, error.field or None)
    if isinstance(error, StaleVersion):
        response = _respond(error.message, "stale_version", 412, "If-Match")
        response["ETag"] = f'"{error.current}"'
        return response
    codes: dict[type[TenantsError], tuple[str, int]] = {
        Conflict: ("conflict", 409),
        NotFound: ("not_found", 404),
        Forbidden: ("forbidden", 403),
    }
    code, http_status = codes[type(error)]
    return _respond(error.message, code, http_status)


def _framework(error: exceptions.APIException) -> Response:
    message, code, param = str(error.detail), str(error.default_code), None
    if isinstance(error, exceptions.ValidationError):
        param, message = next(_flatten(error.detail, ""), ("", "The request is not valid."))
        code = "unknown_field" if message == UNKNOWN_FIELD else "invalid_value"
        message = f"{param}: {message}" if param else message
    response = _respond(message, code, error.status_code, param or None)
    header = getattr(error, "auth_header", None)
    if header:
        response["WWW-Authenticate"] = header
    return response


UNKNOWN_FIELD = "There is no such field."


def _flatten(detail: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted path of the field, message) of a validation error, depth first."""
    if isinstance(detail, dict):
        for key, inner in detail.items():
            name = "" if key == "non_field_errors" else str(key)
            yield from _flatten(inner, ".".join(part for part in (path, name) if part))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _flatten(inner, path)
    else:
        yield path, str(detail)


def _respond(message: str, code: str, http_status: int, param: str | None = None) -> Response:
    return Response(body(message, code, http_status=http_status, param=param), status=http_status)
