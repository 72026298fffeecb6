"""`series/tenants/`, `series/pressure/`, `interference/` and `fairness/`: the fleet over time. For operators."""

from dataclasses import replace
from typing import Any

import msgspec
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import selectors, series
from tenants.api.schema import ERRORS
from tenants.api.serializers.series import (
    FairnessAnswer,
    InterferenceAnswer,
    PressureSeriesAnswer,
    RangeQuery,
    TenantRangeQuery,
    TenantSeriesAnswer,
)
from tenants.api.view import ManagementView
from tenants.models.series import FINE_SECONDS, GROUP
from tenants.rules.series import step_seconds, time_range

MOST_LINES = 50
MOST_PAIRS = 1000


class SeriesView(ManagementView):
    """A view of a range of time. Operators only."""

    def span(self, query: dict[str, Any], num_lines: int = 1) -> series.Span:
        """Return the range that was asked for, in steps that suit so many lines."""
        now = timezone.now()
        start, end = time_range(query.get("from"), query.get("to"), now)
        return series.Span(start, end, step_seconds(start, end, num_lines, now))


class TenantSeriesRead(SeriesView):
    """Tenants over time."""

    @extend_schema(
        operation_id="series_tenants", parameters=[TenantRangeQuery], responses={200: TenantSeriesAnswer, **ERRORS}
    )
    def get(self, request: Request) -> Response:
        """Read what tenants held and got over time: one of them, or the busiest."""
        self.operators_only()
        query = self.query(TenantRangeQuery)
        if "tenant" in query:
            chosen: list[Any] = [self.tenant(query["tenant"]).id]
            num_tenants = 1
        else:
            chosen, num_tenants = series.busiest(self.span(query), MOST_LINES)
        span = self.span(query, len(chosen))
        slugs = _slugs()
        lines = [
            {"tenant": slugs.get(line.tenant_id, line.tenant_id), "points": line.points}
            for line in series.tenant_series(span, chosen)
        ]
        return _answer(TenantSeriesAnswer, span, num_tenants=num_tenants, tenants=lines)


class PressureSeriesRead(SeriesView):
    """Pressure over time."""

    @extend_schema(
        operation_id="series_pressure", parameters=[RangeQuery], responses={200: PressureSeriesAnswer, **ERRORS}
    )
    def get(self, request: Request) -> Response:
        """Read how short each worker's memory was over time, and what made it so."""
        self.operators_only()
        query = self.query(RangeQuery)
        span = self.span(query, series.num_pressure_lines(self.span(query)))
        return _answer(PressureSeriesAnswer, span, workers=series.pressure_series(span))


class InterferenceRead(SeriesView):
    """Who cost whom what."""

    @extend_schema(
        operation_id="interference", parameters=[TenantRangeQuery], responses={200: InterferenceAnswer, **ERRORS}
    )
    def get(self, request: Request) -> Response:
        """Read whose need took memory from whom in a range, and what that cost: of all, or with one tenant in it."""
        self.operators_only()
        query = self.query(TenantRangeQuery)
        tenant_id = self.tenant(query["tenant"]).id if "tenant" in query else None
        span = replace(self.span(query), step=FINE_SECONDS)
        pairs, num_pairs = series.interference(span, tenant_id, MOST_PAIRS)
        slugs = _slugs()
        shown = [
            msgspec.structs.asdict(pair) | {"by": _account(pair.by, slugs), "of": _account(pair.of, slugs)}
            for pair in pairs
        ]
        return _answer(InterferenceAnswer, span, num_pairs=num_pairs, pairs=shown)


class FairnessRead(SeriesView):
    """How even service was."""

    @extend_schema(operation_id="fairness", parameters=[RangeQuery], responses={200: FairnessAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """Read each tenant's service over time, and how evenly it was shared by weight."""
        self.operators_only()
        query = self.query(RangeQuery)
        span = self.span(query, series.busiest(self.span(query), 0)[1])
        view = series.fairness(span, MOST_LINES)
        slugs = _slugs()
        lines = [
            msgspec.structs.asdict(one) | {"tenant": slugs.get(one.tenant_id, one.tenant_id)} for one in view.tenants
        ]
        return _answer(
            FairnessAnswer, span, jain=view.jain, num_tenants=view.num_tenants, points=view.points, tenants=lines
        )


def _answer(serializer: Any, span: series.Span, **values: Any) -> Response:
    whole = {"from": span.start, "to": span.end, "step_seconds": span.step, **values}
    return Response(serializer(whole).data)


def _slugs() -> dict[str, str]:
    return {tenant.id: tenant.slug for tenant in selectors.tenants()}


def _account(name: str, slugs: dict[str, str]) -> str:
    return name if name.startswith(GROUP) else slugs.get(name, name)
