"""How short memory is and who pays for it: pressure, interference and fairness, for operators.

The lines over time come from the API (`series/`, `fairness/`), which the page's script asks; what is here is the rest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from gateway.console.access import operator_page
from tenants import selectors, series
from tenants.console import figures
from tenants.console.readings import readings
from tenants.contracts import TenantView, WorkerView
from tenants.models import User
from tenants.models.series import FINE_SECONDS, GROUP
from tenants.reports import InterferencePair, Pressure

RANGES = {"15m": ("15 min", 900), "1h": ("1 h", 3600), "24h": ("24 h", 86_400), "7d": ("7 days", 604_800)}
USUAL = "1h"
MOST_PAIRS = 100  # listed, the dearest first
MOST_CELLS = 8  # accounts a side of the matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A tenant or a share group, as the page names it."""

    key: str
    name: str
    colour: int | None  # None: shared memory, or a tenant that is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One worker's pressure now."""

    worker_id: str
    pressure: Pressure
    is_known: bool

    @property
    def percent(self) -> float:
        """How long the score's bar is."""
        return round(self.pressure.score * 100, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one account's need cost another."""

    by: Account
    of: Account
    pair: InterferencePair
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the matrix: what one account took from each."""

    by: Account
    cells: list[Loss | None]
    tokens: int


@require_safe
@operator_page
def pressure(request: HttpRequest, operator: User) -> HttpResponse:
    """Show the page; the range of time is in the URL."""
    chosen = _range(request)
    tenants = selectors.tenants()
    shown = _interference(chosen, tenants) | {
        "ranges": [(key, words) for key, (words, _) in RANGES.items()],
        "seconds": RANGES[chosen][1],
        "workers": (workers := selectors.live_workers()),
        "pressures": _now(workers),
        "people": {tenant.slug: {"name": tenant.name, "colour": tenant.colour} for tenant in tenants},
    }
    return render(request, "operator/pressure.html", shown)


@require_safe
@operator_page
def interference(request: HttpRequest, operator: User) -> HttpResponse:
    """Return the part that says who took from whom."""
    return render(request, "operator/interference.html", _interference(_range(request), selectors.tenants()))


def _now(workers: Sequence[WorkerView]) -> list[Gauge]:
    """Return every live worker's last reading; one that said nothing lately is not known."""
    told = {stats.worker_id: stats.pressure for stats in readings().workers}
    return [
        Gauge(
            worker_id=worker.worker_id,
            pressure=told.get(worker.worker_id, Pressure()),
            is_known=worker.worker_id in told,
        )
        for worker in workers
    ]


def _range(request: HttpRequest) -> str:
    chosen = request.GET.get("range", "")
    return chosen if chosen in RANGES else USUAL


def _interference(chosen: str, tenants: Sequence[TenantView]) -> dict[str, Any]:
    now = timezone.now()
    span = series.Span(now - timedelta(seconds=RANGES[chosen][1]), now, FINE_SECONDS)
    pairs, num_pairs = series.interference(span, None, MOST_PAIRS)
    names = {tenant.id: Account(key=tenant.id, name=tenant.name, colour=tenant.colour) for tenant in tenants}
    losses = [_loss(pair, names) for pair in pairs]
    columns, lines = _matrix(losses)
    return {
        "range": chosen,
        "range_words": RANGES[chosen][0],
        "losses": losses,
        "num_pairs": num_pairs,
        "columns": columns,
        "column_tokens": [_tokens(column) for column in zip(*(line.cells for line in lines), strict=True)],
        "lines": lines,
        "matrix_tokens": sum(line.tokens for line in lines),
        "total": _total(pairs),
    }


def _account(key: str, names: dict[str, Account]) -> Account:
    if key.startswith(GROUP):
        return Account(key=key, name=f"shared: {key.removeprefix(GROUP)}", colour=None)
    return names.get(key) or Account(key=key, name="a former tenant", colour=None)


def _loss(pair: InterferencePair, names: dict[str, Account]) -> Loss:
    by, of = _account(pair.by, names), _account(pair.of, names)
    return Loss(by=by, of=of, pair=pair, words=in_words(by.name, of.name, pair))


def in_words(by: str, of: str, pair: InterferencePair) -> str:
    """Say what a pair's counters mean; the dearest loss first."""
    is_own = pair.by == pair.of
    parts = []
    if pair.recomputed_tokens:
        tokens = figures.grouped(pair.recomputed_tokens)
        parts.append(f"computed {tokens} tokens again" if is_own else f"made {of} compute {tokens} tokens again")
    if pair.num_preemptions:
        requests = _counted(pair.num_preemptions, "request")
        parts.append(f"had {requests} preempted" if is_own else f"had {requests} of {of} preempted")
    if pair.cached_blocks:
        blocks = _counted(pair.cached_blocks, "cached block")
        parts.append(f"gave up {blocks}" if is_own else f"took {blocks} from {of}")
    if pair.swapped_bytes:
        parts.append(f"moved {figures.size(pair.swapped_bytes)} {'' if is_own else f'of {of} '}to host memory")
    who = f"{by}, at its own limits," if is_own else by
    return f"{who} {_joined(parts) or 'took nothing'}"


def _counted(amount: int, noun: str) -> str:
    return f"{figures.grouped(amount)} {noun}{'' if amount == 1 else 's'}"


def _joined(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _matrix(losses: list[Loss]) -> tuple[list[Account], list[Line]]:
    """Return the accounts that lost and, for each that took, what it took from each of these; the dearest first."""
    takers = list(dict.fromkeys(loss.by for loss in losses))[:MOST_CELLS]
    losers = list(dict.fromkeys(loss.of for loss in losses))[:MOST_CELLS]
    found = {(loss.by.key, loss.of.key): loss for loss in losses}
    lines = []
    for by in takers:
        cells = [found.get((by.key, of.key)) for of in losers]
        lines.append(Line(by=by, cells=cells, tokens=_tokens(cells)))
    return losers, lines


def _tokens(cells: Iterable[Loss | None]) -> int:
    return sum(cell.pair.recomputed_tokens for cell in cells if cell is not None)


def _total(pairs: Sequence[InterferencePair]) -> InterferencePair:
    return InterferencePair(
        by="",
        of="",
        cached_blocks=sum(pair.cached_blocks for pair in pairs),
        num_preemptions=sum(pair.num_preemptions for pair in pairs),
        recomputed_tokens=sum(pair.recomputed_tokens for pair in pairs),
        swapped_bytes=sum(pair.swapped_bytes for pair in pairs),
    )
