"""Reads of stored responses. An owner is a project of a tenant: nobody else's key finds what it stored."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import structlog
from django.conf import settings
from django.db.models import Case, When
from django.db.models.functions import Now
from django.utils import timezone

from tenants.contracts import ResponseOwner, ResponseRecord, ResponseStatusName
from tenants.models import StoredResponse, TenantQuerySet
from tenants.sealing import unseal

KEPT_DAYS = 30

log = structlog.get_logger(__name__)


def response(owner: ResponseOwner, response_id: str) -> ResponseRecord | None:
    """Return one response.

    None: there is none of this id, it is another owner's, its time is over, or it can't be unsealed any more.
    """
    row = of_owner(owner).filter(pk=response_id).first()
    return None if row is None else record(row)


def responses(owner: ResponseOwner, ids: Sequence[str]) -> list[ResponseRecord]:
    """Return those of the responses that `response` would."""
    records = [record(row) for row in of_owner(owner).filter(pk__in=ids)]
    return [found for found in records if found is not None]


def of_owner(owner: ResponseOwner) -> "TenantQuerySet[Any]":
    """Return an owner's responses, each with `lost`: whoever generated it has let its lease run out.

    Raises:
        NoTenantScope: the owner has no tenant.
    """
    oldest = timezone.now() - timedelta(days=KEPT_DAYS)
    mine = StoredResponse.objects.for_tenant(owner.tenant_id)
    lost: Any = Case(When(lease_until__lt=Now(), then=True), default=False)
    return mine.filter(project_id=owner.project_id, created_at__gt=oldest).annotate(lost=lost)


def record(row: Any) -> ResponseRecord | None:
    """Return a row of `of_owner` as a value, None where it can't be unsealed."""
    document = unseal(row.sealed, tenant_id=str(row.tenant_id), row_id=row.pk, pepper=settings.KEY_PEPPER)
    if document is None:
        log.error("response_unreadable", response_id=row.pk, reason="it is damaged, or KEY_PEPPER has changed")
        return None
    return ResponseRecord(
        id=row.pk,
        status="failed" if row.lost else cast(ResponseStatusName, str(row.status)),
        background=row.background,
        created_at=row.created_at.timestamp(),
        document=document,
    )
