"""`usage/`, `audit/` and `tenants/{slug}/audit/`."""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.pagination import Order
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.records import (
    AuditAnswer,
    AuditPage,
    AuditQuery,
    UsageAnswer,
    UsagePage,
    UsageQuery,
)
from tenants.api.view import ManagementView
from tenants.models import AuditEvent, Tenant, UsageRecord

USAGE_ORDER = Order(columns=("finished_at", "request_id"), kinds=(datetime, str))
AUDIT_ORDER = Order(columns=("at", "id"), kinds=(datetime, int))


class UsageList(ManagementView):
    """The ledger."""

    @extend_schema(operation_id="usage_list", parameters=[*PAGE, UsageQuery], responses={200: UsagePage, **ERRORS})
    def get(self, request: Request) -> Response:
        """List usage records, newest first: of one tenant, or of all that the caller may see."""
        filters = self.query(UsageQuery)
        slug = filters.pop("tenant", None)
        if slug is not None:
            query = UsageRecord.objects.for_tenant(self.tenant(slug).id)
        elif self.caller.is_operator:
            query = UsageRecord.objects.across_tenants()
        else:
            query = UsageRecord.objects.across_tenants().filter(tenant_id__in=self.visible_tenant_ids())
        chosen = _between(query, "finished_at", filters).filter(**filters)
        slugs = dict(Tenant.objects.values_list("id", "slug"))

        def show(row: UsageRecord) -> dict[str, Any]:
            row.tenant = slugs.get(row.tenant_id)  # type: ignore[attr-defined]  # shown beside the columns
            return dict(UsageAnswer(row).data)

        return self.page(chosen, USAGE_ORDER, show)


class TenantAudit(ManagementView):
    """A tenant's audit trail."""

    @extend_schema(operation_id="tenant_audit", parameters=[*PAGE, AuditQuery], responses={200: AuditPage, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """List what was changed in a tenant, newest first. For admins."""
        query = AuditEvent.objects.for_tenant(self.tenant(slug, "audit.read").id)
        filters = self.query(AuditQuery)
        chosen = _between(query, "at", filters).filter(**filters)
        return self.page(chosen, AUDIT_ORDER, lambda row: AuditAnswer(row).data)


class Audit(ManagementView):
    """The whole audit trail. Operators only."""

    @extend_schema(operation_id="audit_list", parameters=[*PAGE, AuditQuery], responses={200: AuditPage, **ERRORS})
    def get(self, request: Request) -> Response:
        """List what was changed anywhere, newest first."""
        self.operators_only()
        filters = self.query(AuditQuery)
        query = _between(AuditEvent.objects.across_tenants(), "at", filters).filter(**filters)
        return self.page(query, AUDIT_ORDER, lambda row: AuditAnswer(row).data)


def _between(query: QuerySet[Any], column: str, filters: dict[str, Any]) -> QuerySet[Any]:
    """Apply and remove `since` (inclusive) and `until` (exclusive)."""
    since, until = filters.pop("since", None), filters.pop("until", None)
    if since is not None:
        query = query.filter(**{f"{column}__gte": since})
    return query.filter(**{f"{column}__lt": until}) if until is not None else query
