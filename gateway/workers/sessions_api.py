"""`/api/v1/tenants/{slug}/sessions/` and `kv/`: here and not in `tenants.api`, because they ask the workers.

Every member reads; who may make keys pins, brings up and erases sessions; an owner erases all that is kept.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.urls.converters import StringConverter
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import exceptions, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from gateway.workers import erasures, sessions
from gateway.workers.sessions import Action, MissingWorker, SessionUnknown, SessionView
from tenants import selectors
from tenants.api.schema import ERRORS
from tenants.api.serializers.base import Answer
from tenants.api.view import ManagementView
from tenants.contracts import TenantView
from tenants.errors import Invalid
from tenants.rules import sessions as rules

DEFAULT_LIMIT = 50
_ID = OpenApiParameter(
    "session_id", OpenApiTypes.STR, OpenApiParameter.PATH, description="percent-encoded; a slash may stay as it is"
)


class SessionIdConverter(StringConverter):
    """The id of a session in a path: any text, so that one that no session may have is refused with a reason."""

    regex = "(?s:.+)"


class WorkerAway(exceptions.APIException):
    """Nobody who answers has the session, and somebody does not answer."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "worker_away"


class SessionCopyAnswer(Answer):
    """A session as one worker has it."""

    model = serializers.CharField()
    worker_id = serializers.CharField()
    num_tokens = serializers.IntegerField(help_text="whose KV is kept")
    num_turns = serializers.IntegerField()
    tier = serializers.CharField(allow_null=True, help_text="where most of it is: device, host or disk; null: nowhere")
    device_bytes = serializers.IntegerField(help_text="what sessions share is counted with each of them")
    host_bytes = serializers.IntegerField()
    disk_bytes = serializers.IntegerField()
    created_at = serializers.FloatField(help_text="unix seconds, as all times here")
    last_used_at = serializers.FloatField()
    expires_at = serializers.SerializerMethodField(help_text="null: it is pinned")
    pinned = serializers.BooleanField()
    active = serializers.BooleanField(help_text="a request of it is being served")

    def get_expires_at(self, copy: sessions.SessionCopy) -> float | None:
        """Return when its time is over."""
        return copy.expires_at or None


class MissingWorkerAnswer(Answer):
    """A worker that did not answer."""

    worker_id = serializers.CharField()
    reason = serializers.CharField()


class SessionAnswer(Answer):
    """A session: one copy, or several where it has moved, the one that was used last first."""

    id = serializers.CharField()
    copies = SessionCopyAnswer(many=True)


class SessionWhole(SessionAnswer):
    """A session, and the workers that may have copies of it too."""

    missing_workers = MissingWorkerAnswer(many=True)


class SessionPage(Answer):
    """A page of sessions, the last used first."""

    object = serializers.CharField(default="list")
    data = SessionAnswer(many=True)  # type: ignore[assignment]  # what pages call it is a serializer's own name
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(allow_null=True)
    num_sessions = serializers.IntegerField(help_text="in all, on the workers that answered")
    missing_workers = MissingWorkerAnswer(many=True)


class ErasureAnswer(Answer):
    """What has been erased. `waiting_for`: workers that do it when they are back."""

    deleted = serializers.BooleanField(help_text="false: some worker has yet to do it")
    waiting_for = MissingWorkerAnswer(many=True)


class KvErasureAnswer(ErasureAnswer):
    """What has been erased, and the version of the policy under which workers hear of it."""

    version = serializers.IntegerField(help_text="see policy-versions/{version}/acks/")


class SessionListing(ManagementView):
    """A tenant's sessions."""

    @extend_schema(
        operation_id="sessions_list",
        parameters=[
            OpenApiParameter("limit", int, description=f"1 to {sessions.MOST_LISTED}; default {DEFAULT_LIMIT}"),
            OpenApiParameter("cursor", str, description="`next_cursor` of the page before"),
        ],
        responses={200: SessionPage, **ERRORS},
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the sessions of all workers, the last used first; those of `missing_workers` are not among them."""
        tenant = self.tenant(slug)
        limit, after = _page(request)
        found = sessions.list_sessions(tenant.id, selectors.known_workers(), limit=limit, after=after)
        page = {
            "object": "list",
            "data": found.sessions,
            "has_more": found.place is not None,
            "next_cursor": sessions.write_cursor(found.place) if found.place is not None else None,
            "num_sessions": found.num_sessions,
            "missing_workers": found.missing,
        }
        return Response(SessionPage(page).data)


class SessionDetail(ManagementView):
    """One session."""

    @extend_schema(
        operation_id="sessions_read",
        parameters=[_ID],
        responses={200: SessionWhole, 503: ERRORS["4XX"], **ERRORS},
    )
    def get(self, request: Request, slug: str, session_id: str) -> Response:
        """Read one session: its size, where it is, until when it is kept."""
        tenant = self.tenant(slug)
        _check(session_id)
        try:
            view, missing = sessions.find_session(tenant.id, session_id, selectors.known_workers())
        except SessionUnknown as error:
            raise _unknown(error.missing) from error
        return _whole(view, missing)

    @extend_schema(
        operation_id="sessions_erase",
        parameters=[_ID],
        responses={200: ErasureAnswer, 202: ErasureAnswer, **ERRORS},
    )
    def delete(self, request: Request, slug: str, session_id: str) -> Response:
        """Erase a session from every tier of every worker. 202: a worker that is away does it when it is back.

        Developers and above.
        """
        tenant = self.tenant(slug, "keys.write")
        _check(session_id)
        erased = erasures.erase_session(tenant_id=tenant.id, session=session_id, actor=self.caller.actor)
        if not erased.was_there and not erased.waiting:
            raise _unknown(())
        answer = {"deleted": not erased.waiting, "waiting_for": erased.waiting}
        return Response(ErasureAnswer(answer).data, status=202 if erased.waiting else 200)


class _SessionChange(SessionDetail):
    """Something that is done to a session. The id of another session may end like the path of this."""

    verb: ClassVar[Action]

    @extend_schema(exclude=True)
    def get(self, request: Request, slug: str, session_id: str) -> Response:
        """Read the session whose id ends like this path."""
        return super().get(request, slug, f"{session_id}/{self.verb}")

    @extend_schema(exclude=True)
    def delete(self, request: Request, slug: str, session_id: str) -> Response:
        """Erase the session whose id ends like this path."""
        return super().delete(request, slug, f"{session_id}/{self.verb}")

    def change(self, slug: str, session_id: str) -> Response:
        """Do it."""
        tenant: TenantView = self.tenant(slug, "keys.write")
        _check(session_id)
        try:
            view, missing = sessions.change_session(tenant.id, session_id, selectors.known_workers(), self.verb)
        except SessionUnknown as error:
            raise _unknown(error.missing) from error
        return _whole(view, missing)


_CHANGED: dict[Any, Any] = {200: SessionWhole, 503: ERRORS["4XX"], **ERRORS}


class SessionPin(_SessionChange):
    """Pinning."""

    verb = "pin"

    @extend_schema(operation_id="sessions_pin", parameters=[_ID], request=None, responses=_CHANGED)
    def post(self, request: Request, slug: str, session_id: str) -> Response:
        """Keep a session until it is unpinned, within the tenant's ceilings. Developers and above."""
        return self.change(slug, session_id)


class SessionUnpin(_SessionChange):
    """Unpinning."""

    verb = "unpin"

    @extend_schema(operation_id="sessions_unpin", parameters=[_ID], request=None, responses=_CHANGED)
    def post(self, request: Request, slug: str, session_id: str) -> Response:
        """Let a session's time run anew. Developers and above."""
        return self.change(slug, session_id)


class SessionPrefetch(_SessionChange):
    """Bringing up."""

    verb = "prefetch"

    @extend_schema(operation_id="sessions_prefetch", parameters=[_ID], request=None, responses=_CHANGED)
    def post(self, request: Request, slug: str, session_id: str) -> Response:
        """Bring a session's KV up to the device, ahead of its next turn. Developers and above."""
        return self.change(slug, session_id)


class TenantKv(ManagementView):
    """All KV of a tenant."""

    @extend_schema(operation_id="kv_erase", responses={200: KvErasureAnswer, 202: KvErasureAnswer, **ERRORS})
    def delete(self, request: Request, slug: str) -> Response:
        """Erase all that is kept of a tenant: sessions go, nothing cached is found again, an encrypted disk is void.

        The tenant's KV namespace and its disk's secret change; requests of sessions that are being served end with an
        error. Owners and operators.
        """
        tenant = self.tenant(slug, "owners.write")
        policy, erased = erasures.erase_kv(tenant_id=tenant.id, actor=self.caller.actor)
        answer = {"deleted": not erased.waiting, "waiting_for": erased.waiting, "version": policy.version}
        return Response(KvErasureAnswer(answer).data, status=202 if erased.waiting else 200)


def _check(session_id: str) -> None:
    try:
        rules.check("session_id", session_id)
    except Invalid as error:
        raise exceptions.ValidationError({"session_id": error.message}) from error


def _unknown(missing: Sequence[MissingWorker]) -> exceptions.APIException:
    if missing:
        names = ", ".join(one.worker_id for one in missing)
        return WorkerAway(f"No worker that answers has this session, and {names} can't be asked. Try again later.")
    return exceptions.NotFound("There is no such session: it was never used, its time is over, or it was erased.")


def _whole(view: SessionView, missing: Sequence[MissingWorker]) -> Response:
    return Response(SessionWhole({"id": view.id, "copies": view.copies, "missing_workers": missing}).data)


def _page(request: Request) -> tuple[int, sessions.Place | None]:
    for name in request.query_params:
        if name not in ("limit", "cursor"):
            raise exceptions.ValidationError({name: "Unknown parameter: there are limit and cursor."})
    cursor = request.query_params.get("cursor")
    try:
        limit = sessions.read_limit(request.query_params.get("limit", str(DEFAULT_LIMIT)))
        return limit, None if cursor is None else sessions.read_cursor(cursor)
    except sessions.BadLimit as error:
        raise exceptions.ValidationError({"limit": f"limit must be {error}."}) from error
    except sessions.BadCursor as error:
        raise exceptions.ValidationError(
            {"cursor": "cursor must be a `next_cursor` that this list gave out."}
        ) from error
