"""Puts the previews of several workers into one: pure.

Counts, bytes and tokens are sums. A percentile of all workers' requests cannot be told from the workers' own, so the
worst worker's stands for it; the same of the time above the guarantee. Pressure is the mean by the workers' pools.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from engine.protocol import pb
from tenants.contracts import PolicyView, TenantView, WorkerView
from tenants.reports import PreviewFigures, PreviewView, TenantPreviewView, WorkerPreviewView


class WorkerAnswer(NamedTuple):
    """One worker's report, or why there is none."""

    worker: WorkerView
    report: pb.PreviewReport | None
    problem: str


def merge(
    before: PolicyView,
    after: PolicyView,
    answers: Sequence[WorkerAnswer],
    tenants: Mapping[str, TenantView],
    *,
    elapsed_seconds: float,
) -> PreviewView:
    """Return all workers' answers as one view.

    Args:
        before: the policy as it is.
        after: the policy as it would be.
        answers: of every live worker.
        tenants: by id, to call them by their names.
        elapsed_seconds: that the whole answer took.
    """
    told = [(answer.worker, answer.report) for answer in answers if answer.report is not None]
    reports = [report for _, report in told]
    by_tenant: dict[str, list[pb.TenantPreview]] = {}
    for report in reports:
        for tenant in report.tenants:
            by_tenant.setdefault(tenant.tenant, []).append(tenant)
    views = [_tenant(name, parts, tenants.get(name)) for name, parts in by_tenant.items()]
    views.sort(key=lambda view: (-view.before.prompt_tokens, view.slug, view.tenant_id))
    problems = {report.problem for report in reports}
    return PreviewView(
        before=before,
        after=after,
        seconds=max((report.seconds for report in reports), default=0.0),
        num_events=sum(report.num_events for report in reports),
        elapsed_seconds=elapsed_seconds,
        hit_rate_before=_hit_rate(view.before for view in views),
        hit_rate_after=_hit_rate(view.after for view in views),
        pressure_before=_mean((report.pressure_before, worker.kv_bytes) for worker, report in told),
        pressure_after=_mean((report.pressure_after, worker.kv_bytes) for worker, report in told),
        tenants=tuple(views),
        workers=tuple(_worker(answer) for answer in answers),
        problem=" ".join(sorted(problems)) if all(problems) else "",
    )


def _tenant(tenant_id: str, parts: Sequence[pb.TenantPreview], known: TenantView | None) -> TenantPreviewView:
    return TenantPreviewView(
        tenant_id=tenant_id,
        slug=known.slug if known is not None else "",
        name=known.name if known is not None else tenant_id,
        colour=known.colour if known is not None else 0,
        before=_figures([part.before for part in parts]),
        after=_figures([part.after for part in parts]),
    )


def _figures(parts: Sequence[pb.PreviewFigures]) -> PreviewFigures:
    def total(field: Callable[[pb.PreviewFigures], int]) -> int:
        return sum(map(field, parts))

    def worst(field: Callable[[pb.PreviewFigures], float]) -> float:
        return max(map(field, parts), default=0.0)

    return PreviewFigures(
        num_requests=total(lambda part: part.num_requests),
        num_refused=total(lambda part: part.num_refused),
        num_preemptions=total(lambda part: part.num_preemptions),
        evicted_blocks=total(lambda part: part.evicted_blocks),
        prompt_tokens=total(lambda part: part.prompt_tokens),
        cached_tokens=total(lambda part: part.cached_tokens),
        output_tokens=total(lambda part: part.output_tokens),
        kv_peak_bytes=total(lambda part: part.kv_peak_bytes),
        above_soft_seconds=worst(lambda part: part.above_soft_seconds),
        ttft_p50_seconds=worst(lambda part: part.ttft_p50_seconds),
        ttft_p99_seconds=worst(lambda part: part.ttft_p99_seconds),
        queue_p99_seconds=worst(lambda part: part.queue_p99_seconds),
    )


def _worker(answer: WorkerAnswer) -> WorkerPreviewView:
    report = answer.report
    if report is None:
        return WorkerPreviewView(worker_id=answer.worker.worker_id, problem=answer.problem)
    return WorkerPreviewView(
        worker_id=answer.worker.worker_id,
        seconds=report.seconds,
        num_events=report.num_events,
        elapsed_seconds=report.elapsed_seconds,
        problem=report.problem,
    )


def _hit_rate(figures: Iterable[PreviewFigures]) -> float:
    cached = asked = 0
    for one in figures:
        cached, asked = cached + one.cached_tokens, asked + one.prompt_tokens
    return cached / asked if asked else 0.0


def _mean(weighted: Iterable[tuple[float, int]]) -> float:
    pairs = list(weighted)
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else 0.0
