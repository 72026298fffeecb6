"""A tenant's registered prefixes: those of the share group that its policy names, which all members of it share."""

from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from tenants import selectors
from tenants.console import prefix_desk
from tenants.console.access import Place, tenant_page
from tenants.console.prefix_desk import Desk, Row
from tenants.console.readings import readings
from tenants.contracts import ShareGroupView
from tenants.reports import PrefixReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What registered prefixes save with one model: tokens that no request computes again."""

    model: str
    tokens: int
    prefixes: int
    is_known: bool  # some prefix has a reading


@require_safe
@tenant_page()
def prefixes(request: HttpRequest, place: Place) -> HttpResponse:
    """List the prefixes that the tenant shares, or say who can put it into a group."""
    group = _group(place)
    if group is None:
        return render(request, "prefixes/none.html", {"place": place})
    desk = _desk(place, group)
    rows = prefix_desk.rows(desk)
    shown = _use(group) | {"place": place, "group": group, "desk": desk, "rows": rows, "saved": _saved(rows)}
    return render(request, "prefixes/page.html", shown)


@require_safe
@tenant_page()
def use(request: HttpRequest, place: Place) -> HttpResponse:
    """Return the part of the page that refreshes itself."""
    group = _group_or_404(place)
    shown = _use(group) | {"place": place, "group": group, "saved": _saved(prefix_desk.rows(_desk(place, group)))}
    return render(request, "prefixes/use.html", shown)


@require_safe
@tenant_page()
def listed(request: HttpRequest, place: Place) -> HttpResponse:
    """Return the list anew."""
    return prefix_desk.listed(request, _desk(place, _group_or_404(place)))


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page("manage")
def new(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the form of a new prefix; on POST register it."""
    return prefix_desk.new(request, _desk(place, _group_or_404(place)))


@require_safe
@tenant_page()
def row(request: HttpRequest, place: Place, prefix_id: str) -> HttpResponse:
    """Return one prefix, its contents or the question whether to remove it."""
    return prefix_desk.one(request, _desk(place, _group_or_404(place)), prefix_id)


@require_POST
@tenant_page("manage")
def remove(request: HttpRequest, place: Place, prefix_id: str) -> HttpResponse:
    """Remove a prefix that this tenant registered."""
    return prefix_desk.remove(request, _desk(place, _group_or_404(place)), prefix_id)


@require_safe
@tenant_page()
def acks(request: HttpRequest, place: Place, version: int) -> HttpResponse:
    """Return how far a version of the tenant's group has come."""
    group = _group_or_404(place)
    found = selectors.policy_acks(version)
    if found is None or found.share_group != group.name:
        raise Http404
    return render(request, "parts/acks.html", {"acks": found, "acks_url": _desk(place, group).acks_url})


def _group(place: Place) -> ShareGroupView | None:
    policy = selectors.policy(place.tenant.id)
    return selectors.share_group(policy.share_group) if policy is not None and policy.share_group else None


def _group_or_404(place: Place) -> ShareGroupView:
    group = _group(place)
    if group is None:
        raise Http404
    return group


def _desk(place: Place, group: ShareGroupView) -> Desk:
    url = reverse("tenant-prefixes", args=[place.tenant.slug])
    return Desk(
        group=group.name,
        page_url=url,
        url=url,
        acks_url=f"{url}acks/",
        tenant_id=place.tenant.id,
        may_write=place.may_write_prefixes,
        actor=place.actor,
    )


def _use(group: ShareGroupView) -> dict[str, Any]:
    now = readings()
    return {"readings": now, "use": now.of_group(group.name)}


def _saved(rows: list[Row]) -> list[Saved]:
    """Return what is shared with each model that live workers serve, by the model's name."""
    by_model: dict[str, list[PrefixReading]] = {}
    for one in (shared for row in rows for shared in row.shared):
        by_model.setdefault(one.model, []).extend([one.reading] if one.reading is not None else [])
    return [
        Saved(
            model=model,
            tokens=sum(reading.shared_tokens for reading in readings),
            prefixes=sum(1 for reading in readings if reading.shared_tokens),
            is_known=bool(readings),
        )
        for model, readings in sorted(by_model.items())
    ]
