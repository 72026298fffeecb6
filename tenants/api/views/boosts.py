"""`tenants/{slug}/boosts/`: limits changed for a time. Written by operators, read by the tenant as well."""

import uuid
from datetime import datetime, timedelta

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import rows
from tenants.api.pagination import Order
from tenants.api.preconditions import expected_version, if_match
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.boosts import BoostAnswer, BoostPage, BoostStart
from tenants.api.view import ManagementView
from tenants.models import Boost
from tenants.services.boosts import end_boost, start_boost

NEWEST_FIRST = Order(columns=("started_at", "id"), kinds=(datetime, uuid.UUID))


class BoostList(ManagementView):
    """A tenant's boosts."""

    @extend_schema(operation_id="boosts_list", parameters=PAGE, responses={200: BoostPage, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """List boosts, newest first; one whose `ended_at` is null is in force."""
        query = Boost.objects.for_tenant(self.tenant(slug).id).select_related("tenant")
        return self.page(query, NEWEST_FIRST, lambda row: BoostAnswer(rows.boost_view(row)).data)

    @extend_schema(
        operation_id="boosts_start",
        parameters=[if_match(required=True)],
        request=BoostStart,
        responses={201: BoostAnswer, 412: ERRORS["4XX"], 428: ERRORS["4XX"], **ERRORS},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Change limits for a time, if the policy still is at the version in `If-Match`. Operators only.

        At its end each limit that is still as the boost left it goes back; one that somebody wrote meanwhile stays.
        While one is in force another is a 409.
        """
        tenant = self.tenant(slug)
        self.operators_only()
        body = self.read(BoostStart)
        ends_at = body.get("ends_at") or timezone.now() + timedelta(seconds=body["duration_seconds"])
        boost = start_boost(
            tenant_id=tenant.id,
            expected_version=expected_version(request),
            changes=body["changes"],
            ends_at=ends_at,
            reason=body["reason"],
            actor=self.caller.actor,
            overcommit=body["overcommit"],
        )
        return Response(BoostAnswer(boost).data, status=201)


class BoostDetail(ManagementView):
    """One boost."""

    @extend_schema(operation_id="boosts_read", responses={200: BoostAnswer, **ERRORS})
    def get(self, request: Request, slug: str, boost_id: uuid.UUID) -> Response:
        """Read a boost."""
        query = Boost.objects.for_tenant(self.tenant(slug).id).select_related("tenant")
        row = query.filter(pk=boost_id).first()
        if row is None:
            raise NotFound("There is no such boost.")
        return Response(BoostAnswer(rows.boost_view(row)).data)

    @extend_schema(operation_id="boosts_end", responses={200: BoostAnswer, **ERRORS})
    def delete(self, request: Request, slug: str, boost_id: uuid.UUID) -> Response:
        """End a boost before its time; one that has ended is a 409. Operators only."""
        tenant = self.tenant(slug)
        self.operators_only()
        boost = end_boost(tenant_id=tenant.id, boost_id=boost_id, actor=self.caller.actor)
        return Response(BoostAnswer(boost).data)
