"""What a change would have done, before it is made: the answer of the workers' replays, in words and figures."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from gateway.console.access import operator_page
from gateway.console.boost_form import BoostForm
from gateway.console.policy_editor import PolicyEditor, editor_of
from gateway.workers.preview import PreviewUnavailable, preview
from tenants.errors import Invalid
from tenants.models import User
from tenants.reports import PreviewFigures, PreviewView, TenantPreviewView

NOTICEABLE_SECONDS = 0.005  # a shorter time to the first token is no gain
NOTICEABLE_PART = 0.05  # of the time before
BOOST_ID = "boost-preview"  # of the panel in a boost's form


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tenant, before and after; `gains` and `losses` in words."""

    tenant: TenantPreviewView
    gains: list[str]
    losses: list[str]

    @property
    def is_changed(self) -> bool:
        """Whether anything would have been different."""
        return bool(self.gains or self.losses)

    @property
    def hit_before(self) -> float | None:
        """Share of prompt tokens that were found in a cache, in per cent."""
        return _hit(self.tenant.before)

    @property
    def hit_after(self) -> float | None:
        """The same, after."""
        return _hit(self.tenant.after)


@require_POST
@operator_page
def run(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Return what the posted values would have done to the last minutes, without changing anything."""
    editor = editor_of(slug)
    form = editor.form(request.POST)
    if not form.is_valid():
        return _answer(request, {"state": "invalid"})
    overcommit = bool(form.cleaned_data.get("overcommit"))
    return _replayed(request, editor, form.changes(editor.current), overcommit=overcommit)


@require_POST
@operator_page
def run_boost(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Return what the limits of a boost that is being written would have done; how long it lasts, and why, can wait."""
    editor = editor_of(slug)
    form = BoostForm(request.POST, current=editor.current)
    if not form.is_valid() and form.errors.keys() & {*form.limits, "overcommit"}:
        return _answer(request, {"state": "invalid", "preview_id": BOOST_ID})
    overcommit = bool(form.cleaned_data.get("overcommit"))
    return _replayed(request, editor, form.changes(), overcommit=overcommit, preview_id=BOOST_ID)


def _replayed(
    request: HttpRequest, editor: PolicyEditor, changes: dict[str, Any], *, overcommit: bool, **shown: str
) -> HttpResponse:
    if not changes:
        return _answer(request, shown | {"state": "unchanged"})
    try:
        found = preview(tenant_id=editor.tenant.id, changes=changes, overcommit=overcommit)
    except Invalid as error:
        return _answer(request, shown | {"state": "invalid", "problem": error.message})
    except PreviewUnavailable as error:
        state = "busy" if "another preview" in str(error) else "away"
        return _answer(request, shown | {"state": state, "problem": str(error)})
    return _answer(request, shown | told(found))


def told(found: PreviewView) -> dict[str, Any]:
    """Return what the panel shows of an answer."""
    if found.problem:
        return {"state": "empty", "problem": found.problem}
    rows = sorted((_row(tenant) for tenant in found.tenants), key=lambda row: not row.is_changed)
    return {
        "state": "told",
        "preview": found,
        "rows": rows,
        "winners": [row for row in rows if row.gains and not row.losses],
        "losers": [row for row in rows if row.losses],
        "hit_before": found.hit_rate_before * 100,
        "hit_after": found.hit_rate_after * 100,
        "silent": [worker for worker in found.workers if worker.problem],
    }


def _answer(request: HttpRequest, shown: dict[str, Any]) -> HttpResponse:
    return render(request, "operator/preview.html", shown)


def _row(tenant: TenantPreviewView) -> Row:
    gains: list[str] = []
    losses: list[str] = []
    for is_loss, words in _differences(tenant.before, tenant.after):
        (losses if is_loss else gains).append(words)
    return Row(tenant=tenant, gains=gains, losses=losses)


def _differences(before: PreviewFigures, after: PreviewFigures) -> Iterable[tuple[bool, str]]:
    """Return what is different, each with whether it is to the tenant's loss."""
    counts = (
        (after.num_refused - before.num_refused, "request refused", "requests refused"),
        (after.num_preemptions - before.num_preemptions, "preemption", "preemptions"),
        (after.evicted_blocks - before.evicted_blocks, "cached block evicted", "cached blocks evicted"),
    )
    for more, one, many in counts:
        if more:
            yield more > 0, f"{abs(more)} {'more' if more > 0 else 'fewer'} {one if abs(more) == 1 else many}"
    hits = (_hit(after) or 0.0) - (_hit(before) or 0.0)
    if abs(hits) >= 1:
        yield hits < 0, f"{'fewer' if hits < 0 else 'more'} tokens from cache"
    wait = after.ttft_p99_seconds - before.ttft_p99_seconds
    if abs(wait) >= max(NOTICEABLE_SECONDS, NOTICEABLE_PART * before.ttft_p99_seconds):
        yield wait > 0, f"{'later' if wait > 0 else 'sooner'} first tokens"


def _hit(figures: PreviewFigures) -> float | None:
    return figures.cached_tokens / figures.prompt_tokens * 100 if figures.prompt_tokens else None
