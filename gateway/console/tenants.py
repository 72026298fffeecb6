"""The operator's tenants: who uses how much of what they may, live."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from gateway.console.access import operator_page
from gateway.console.policy_form import NO_TRIAL
from tenants import selectors
from tenants.console.readings import Readings, Use, readings
from tenants.contracts import BoostView, PolicyView, ShareGroupView, TenantView
from tenants.models import User
from tenants.rules.policy import LOW_WATERMARK

SORTS = ("tenant", "use", "borrowed", "host", "disk", "sessions", "running", "waiting", "rate", "above")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tenant with its policy and its use."""

    tenant: TenantView
    policy: PolicyView
    use: Use
    boost: BoostView | None = None  # in force

    @property
    def has_trials(self) -> bool:
        """Whether some limit is on trial."""
        return self.policy.shadow != NO_TRIAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One account's part of the pool's bar; places and lengths in per cent of the pool."""

    account: str  # as the live feed's uses are keyed: tenant:<id> or group:<name>
    name: str
    colour: int | None  # None: shared memory
    start: float
    length: float
    held: float  # where what is only cached begins, at the end of the part
    cached: float


@require_safe
@operator_page
def tenants(request: HttpRequest, operator: User) -> HttpResponse:
    """Show the pool and every tenant."""
    return render(request, "operator/tenants.html", fleet_parts(request))


@require_safe
@operator_page
def fleet(request: HttpRequest, operator: User) -> HttpResponse:
    """Return the part of the page that is fetched anew when the feed had a gap."""
    return render(request, "operator/fleet.html", fleet_parts(request))


def fleet_parts(request: HttpRequest) -> dict[str, Any]:
    """Return what the pool and the table of tenants show."""
    now = readings()
    workers = selectors.live_workers()
    policies = dict(selectors.policies())
    groups = selectors.share_groups()
    pool = now.pool_bytes or sum(worker.kv_bytes for worker in workers)
    soft = selectors.guaranteed_bytes()
    sort = request.GET.get("sort", "")
    sort = sort if sort in SORTS else "tenant"
    boosts = {boost.tenant_id: boost for boost in selectors.boosts_in_force()}
    rows = [
        Row(tenant=tenant, policy=policies[tenant.id], use=now.of(tenant.id), boost=boosts.get(tenant.id))
        for tenant in selectors.tenants()
    ]
    return {
        "rows": _sorted(rows, sort),
        "pieces": _pieces(rows, groups, now, pool),  # the pool's bar keeps one order, whatever the table's
        "has_groups": bool(groups),
        "sort": sort,
        "readings": now,
        "workers": workers,
        "pool_bytes": pool,
        "soft_bytes": soft,
        "soft_share": round(min(soft / pool, 1) * 100, 2) if pool else 0,
        "low_watermark": LOW_WATERMARK * 100,
        "version": selectors.policy_version(),
    }


def _pieces(rows: list[Row], groups: list[ShareGroupView], now: Readings, pool: int) -> list[Piece]:
    """Lay what the accounts use end to end along the pool: the tenants by slug, then the share groups by name."""
    accounts = [(f"tenant:{row.tenant.id}", row.tenant.name, row.tenant.colour, row.use) for row in rows]
    shared = [(f"group:{group.name}", f"shared: {group.name}", None, now.of_group(group.name)) for group in groups]
    pieces: list[Piece] = []
    start = 0.0
    for account, name, colour, use in [*accounts, *shared]:
        length, cached = (part / pool * 100 if pool else 0.0 for part in (use.kv_bytes, use.kv_cached_bytes))
        pieces.append(
            Piece(
                account=account,
                name=name,
                colour=colour,
                start=round(start, 3),
                length=round(length, 3),
                held=round(start + length - cached, 3),
                cached=round(cached, 3),
            )
        )
        start += length
    return pieces


def _sorted(rows: list[Row], sort: str) -> list[Row]:
    keys: dict[str, Callable[[Row], Any]] = {
        "use": lambda row: -row.use.kv_bytes,
        "borrowed": lambda row: -row.use.kv_borrowed_bytes,
        "host": lambda row: -row.use.host_bytes,
        "disk": lambda row: -row.use.disk_bytes,
        "sessions": lambda row: -row.use.num_sessions,
        "running": lambda row: -row.use.running,
        "waiting": lambda row: (-row.use.queued, -row.use.oldest_wait_seconds),
        "rate": lambda row: -row.use.output_tokens_per_second,
        "above": lambda row: -row.use.above_soft_seconds,
    }
    return sorted(rows, key=keys[sort]) if sort in keys else rows
