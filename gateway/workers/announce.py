"""Workers announce themselves here, at their start and every ten seconds: `POST /api/v1/workers/announce/`."""

import hmac
import re

import msgspec
import structlog
from django.db import Error
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from gateway.config import config
from tenants.api import errors
from tenants.contracts import WorkerAnnouncement
from tenants.errors import Invalid
from tenants.services import workers

MAX_BODY_BYTES = 16 << 10
RETRY_SECONDS = 2
_HOST_PORT = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+):([0-9]{1,5})$")
_FIELD = re.compile(r"\$\.(\w+)|field `(\w+)`")

log = structlog.get_logger("workers")


@csrf_exempt  # the caller is a worker with a bearer token, not a browser with a cookie
@require_POST
def announce(request: HttpRequest) -> JsonResponse:
    """Take a worker's announcement or heartbeat.

    200 with the worker's id; 400 names the wrong field; 401 the token is missing or wrong; 503 the database is away.
    Fields that are not known here are ignored, so that a newer worker can announce itself.
    """
    if not _is_authentic(request):
        response = _refusal(401, "authorization", "send the worker token: Authorization: Bearer <ENGINE_TOKEN>")
        response["WWW-Authenticate"] = "Bearer"
        return response
    if len(request.body) > MAX_BODY_BYTES:
        return _refusal(413, "", f"an announcement has at most {MAX_BODY_BYTES} bytes")
    try:
        announcement = _parse(request.body)
        view = workers.announce(announcement=announcement)
    except Invalid as error:
        return _refusal(400, error.field, error.message)
    except Error as error:
        log.warning("announcement_lost", reason=str(error).strip())
        response = _refusal(503, "", "the database is away: announce again shortly")
        response["Retry-After"] = str(RETRY_SECONDS)
        return response
    return JsonResponse({"worker_id": view.worker_id})


def _is_authentic(request: HttpRequest) -> bool:
    token = config().engine_token
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    # Without a token nobody may announce, and the comparison still takes its time.
    return hmac.compare_digest(given, f"Bearer {token}".encode()) and bool(token)


def _parse(body: bytes) -> WorkerAnnouncement:
    try:
        announcement = msgspec.json.decode(body, type=WorkerAnnouncement)
    except msgspec.ValidationError as error:
        found = _FIELD.search(str(error))
        raise Invalid((found[1] or found[2]) if found else "", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("", f"the body is not JSON: {error}") from error
    _check_address(announcement.address)
    return announcement


def _check_address(address: str) -> None:
    if address.startswith("unix:"):
        if address.startswith("unix:/") and "\0" not in address:
            return
    elif (match := _HOST_PORT.match(address)) and 0 < int(match[2]) < 65536:
        return
    raise Invalid("address", f"{address!r} cannot be dialled: write host:port or unix:/absolute/path")


def _refusal(status: int, field: str, message: str) -> JsonResponse:
    code = {400: "invalid_announcement", 401: "invalid_token", 413: "too_large", 503: "database_away"}[status]
    return JsonResponse(errors.body(message, code, http_status=status, param=field or None), status=status)
