"""Reads of the time series: rows of all workers, of ten seconds or five minutes, as points of one distance.

What a tenant held is summed over workers, each with its mean over the time in which the tenant was active there.
"""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, F, Func, Max, QuerySet, Sum, Value
from django.db.models.expressions import CombinedExpression

from tenants.models import InterferenceSample, PressureSample, TenantSample
from tenants.reports import (
    FairnessPoint,
    FairnessView,
    InterferencePair,
    PressurePoint,
    PressureSeries,
    ServicePoint,
    TenantPoint,
    TenantSeries,
    TenantService,
)
from tenants.rules.series import align, entitled, jain

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MEANS = ("kv_bytes", "kv_cached_bytes", "kv_borrowed_bytes", "running", "queued")
_GAINS = ("above_soft_seconds", "service", "output_tokens", "num_preemptions", "recomputed_tokens")
_PARTS = ("score", "use", "borrowed", "wait", "swap", "pool_use")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """A range of time in steps. Rows count in the step that they begin in; the first step is taken whole."""

    start: datetime
    end: datetime
    step: int  # seconds

    def of(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows within."""
        return rows.filter(at__gte=align(self.start, self.step), at__lt=self.end)

    def steps_of(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows within, each with the step that it lies in."""
        width, epoch = Value(timedelta(seconds=self.step)), Value(_EPOCH, output_field=DateTimeField())
        point = Func(width, F("at"), epoch, function="date_bin", output_field=DateTimeField())
        steps: QuerySet[Any] = self.of(rows).annotate(point=point)
        return steps


def busiest(span: Span, most: int) -> tuple[list[uuid.UUID], int]:
    """Return the tenants that had most service, and of those without any that held most; and how many there are."""
    rows = span.of(TenantSample.objects.across_tenants())
    totals = rows.values("tenant_id").annotate(total=Sum("service"), held=Sum(_weighed("kv_bytes")))
    ordered = totals.order_by("-total", "-held", "tenant_id").values_list("tenant_id", flat=True)
    return list(ordered[:most]), totals.count()


def tenant_series(span: Span, tenant_ids: Sequence[uuid.UUID | str]) -> list[TenantSeries]:
    """Return the lines of these tenants, in this order; one without rows has no points."""
    chosen = [uuid.UUID(str(one)) for one in tenant_ids]
    rows = span.steps_of(TenantSample.objects.across_tenants().filter(tenant_id__in=chosen))
    grouped = rows.values("tenant_id", "point", "worker_id").annotate(
        covers=Sum("covered"),
        weigh=Sum(_weighed("weight")),
        peak=Max("kv_peak_bytes"),
        wait=Max("oldest_wait_seconds"),
        **{f"sum_{name}": Sum(_weighed(name)) for name in _MEANS},
        **{f"sum_{name}": Sum(name) for name in _GAINS},
    )
    points: dict[uuid.UUID, dict[datetime, list[Row]]] = {one: defaultdict(list) for one in chosen}
    for row in grouped.order_by("point"):
        points[row["tenant_id"]][row["point"]].append(row)
    return [
        TenantSeries(tenant_id=str(one), points=tuple(_tenant_point(at, rows) for at, rows in points[one].items()))
        for one in chosen
    ]


def pressure_series(span: Span) -> list[PressureSeries]:
    """Return a line for each worker, by id."""
    grouped = (
        span.steps_of(PressureSample.objects.all())
        .values("worker_id", "point")
        .annotate(
            covers=Sum("covered"), peak=Max("score_peak"), **{f"sum_{name}": Sum(_weighed(name)) for name in _PARTS}
        )
    )
    lines: dict[str, list[PressurePoint]] = defaultdict(list)
    for row in grouped.order_by("worker_id", "point"):
        mean = {name: row[f"sum_{name}"] / row["covers"] for name in _PARTS}
        lines[row["worker_id"]].append(PressurePoint(at=row["point"], score_peak=row["peak"], **mean))
    return [PressureSeries(worker_id=worker, points=tuple(points)) for worker, points in lines.items()]


def num_pressure_lines(span: Span) -> int:
    """Return how many workers have rows within."""
    return span.of(PressureSample.objects.all()).values("worker_id").distinct().count()


def interference(span: Span, tenant_id: uuid.UUID | str | None, most: int) -> tuple[list[InterferencePair], int]:
    """Return who cost whom what, the dearest pairs first, and how many there are; of one tenant, or of all."""
    every = InterferenceSample.objects
    rows = every.across_tenants() if tenant_id is None else every.for_tenant(tenant_id)
    names = ("cached_blocks", "num_preemptions", "recomputed_tokens", "swapped_bytes")
    pairs = span.of(rows).values("by", "of").annotate(**{f"sum_{name}": Sum(name) for name in names})
    order = ("-sum_recomputed_tokens", "-sum_num_preemptions", "-sum_cached_blocks", "by", "of")
    found = [
        InterferencePair(by=row["by"], of=row["of"], **{name: int(row[f"sum_{name}"]) for name in names})
        for row in pairs.order_by(*order)[:most]
    ]
    return found, len(found) if len(found) < most else pairs.count()


def fairness(span: Span, most: int) -> FairnessView:
    """Return who had how much service, the best served first, and how even it was, over all and step by step.

    A tenant counts in a step if it was served in it or had requests waiting; its share is its service by its weight.
    """
    grouped = (
        span.steps_of(TenantSample.objects.across_tenants())
        .values("tenant_id", "point")
        .annotate(covers=Sum("covered"), weigh=Sum(_weighed("weight")), waits=Sum("queued"), sum_service=Sum("service"))
    )
    whole, steps = _Window(), defaultdict[datetime, _Window](_Window)
    points: dict[str, list[ServicePoint]] = defaultdict(list)
    for row in grouped.order_by("point"):
        tenant, service = str(row["tenant_id"]), float(row["sum_service"])
        whole.add(tenant, row)
        steps[row["point"]].add(tenant, row)
        share = service / (row["weigh"] / row["covers"] or 1.0)
        points[tenant].append(ServicePoint(at=row["point"], service=service, share=share))
    tenants = [whole.of(tenant, tuple(line)) for tenant, line in points.items()]
    tenants.sort(key=lambda one: (-one.share, one.tenant_id))
    return FairnessView(
        jain=whole.jain(),
        num_tenants=len(tenants),
        points=tuple(FairnessPoint(at=at, jain=one.jain(), num_tenants=one.num()) for at, one in steps.items()),
        tenants=tuple(tenants[:most]),
    )


@dataclass(slots=True)
class _Window:
    """Service of tenants within a time."""

    service: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    weigh: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # weight · seconds
    covers: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    waited: dict[str, bool] = field(default_factory=lambda: defaultdict(bool))

    def add(self, tenant: str, row: Row) -> None:
        self.service[tenant] += row["sum_service"]
        self.weigh[tenant] += row["weigh"]
        self.covers[tenant] += row["covers"]
        self.waited[tenant] = self.waited[tenant] or row["waits"] > 0

    def shares(self) -> list[float]:
        weight = {tenant: self.weigh[tenant] / self.covers[tenant] for tenant in self.service}
        return entitled(self.service, weight, self.waited)

    def jain(self) -> float | None:
        return jain(self.shares())

    def num(self) -> int:
        return len(self.shares())

    def of(self, tenant: str, points: tuple[ServicePoint, ...]) -> TenantService:
        weight = self.weigh[tenant] / self.covers[tenant] or 1.0
        service = self.service[tenant]
        return TenantService(
            tenant_id=tenant,
            service=service,
            weight=weight,
            share=service / weight,
            waited=self.waited[tenant],
            points=points,
        )


def _tenant_point(at: datetime, rows: Sequence[Row]) -> TenantPoint:
    """Return one point of the rows of all workers."""
    covered = sum(row["covers"] for row in rows)
    means = {name: sum(row[f"sum_{name}"] / row["covers"] for row in rows) for name in _MEANS}
    gains = {name: sum(row[f"sum_{name}"] for row in rows) for name in _GAINS}
    whole = {name: int(gains.pop(name)) for name in ("output_tokens", "num_preemptions", "recomputed_tokens")}
    return TenantPoint(
        at=at,
        weight=sum(row["weigh"] for row in rows) / covered,
        kv_peak_bytes=int(sum(row["peak"] for row in rows)),
        oldest_wait_seconds=max(row["wait"] for row in rows),
        **means,
        **gains,
        **whole,
    )


def _weighed(name: str) -> CombinedExpression:
    return F(name) * F("covered")
