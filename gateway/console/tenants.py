"""The operator's tenants: who uses how much of what they may, live."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from gateway.console.access import operator_page
from tenants import selectors
from tenants.console.readings import Readings, Use, readings
from tenants.contracts import PolicyView, TenantView
from tenants.models import User
from tenants.rules.policy import LOW_WATERMARK

SORTS = ("tenant", "use", "running", "rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tenant with its policy and its use."""

    tenant: TenantView
    policy: PolicyView
    use: Use
    start: float  # per cent: where its part of the pool's bar begins
    share: float  # per cent: how long that part is


@require_safe
@operator_page
def tenants(request: HttpRequest, operator: User) -> HttpResponse:
    """Show the pool and every tenant."""
    return render(request, "operator/tenants.html", _fleet(request))


@require_safe
@operator_page
def fleet(request: HttpRequest, operator: User) -> HttpResponse:
    """Return the part of the page that is fetched anew when the feed had a gap."""
    return render(request, "operator/fleet.html", _fleet(request))


def _fleet(request: HttpRequest) -> dict[str, Any]:
    now = readings()
    workers = selectors.live_workers()
    policies = dict(selectors.policies())
    pool = now.pool_bytes or sum(worker.kv_bytes for worker in workers)
    soft = sum(policy.kv_soft_bytes for policy in policies.values())
    sort = request.GET.get("sort", "")
    sort = sort if sort in SORTS else "tenant"
    rows = _rows(now, policies, pool)
    return {
        "rows": _sorted(rows, sort),
        "pieces": rows,  # the pool's bar keeps one order, whatever the table's
        "sort": sort,
        "readings": now,
        "workers": workers,
        "pool_bytes": pool,
        "soft_bytes": soft,
        "soft_share": round(min(soft / pool, 1) * 100, 2) if pool else 0,
        "low_watermark": LOW_WATERMARK * 100,
        "version": selectors.policy_version(),
    }


def _rows(now: Readings, policies: dict[str, PolicyView], pool: int) -> list[Row]:
    """Return a row for every tenant, by slug, with its place in the pool's bar."""
    rows: list[Row] = []
    start = 0.0
    for tenant in selectors.tenants():
        use = now.of(tenant.id)
        share = use.kv_bytes / pool * 100 if pool else 0.0
        rows.append(
            Row(tenant=tenant, policy=policies[tenant.id], use=use, start=round(start, 3), share=round(share, 3))
        )
        start += share
    return rows


def _sorted(rows: list[Row], sort: str) -> list[Row]:
    keys = {
        "use": lambda row: -row.use.kv_bytes,
        "running": lambda row: -(row.use.running + row.use.queued),
        "rate": lambda row: -row.use.output_tokens_per_second,
    }
    return sorted(rows, key=keys[sort]) if sort in keys else rows
