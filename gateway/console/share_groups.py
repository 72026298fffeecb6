"""The operator's share groups: who shares how much of what they may, live; and how a new one is made."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gateway.console import limits_form
from gateway.console.access import operator_page
from gateway.console.limits_form import Guarantees
from gateway.console.share_group_form import NewGroupForm
from tenants import selectors
from tenants.console.access import actor
from tenants.console.readings import Use, readings
from tenants.contracts import ShareGroupView, TenantView
from tenants.errors import Conflict, Invalid
from tenants.models import User
from tenants.services.share_groups import create_share_group

REMOVED = "share_group_removed"  # in the session: name and version of a group that this operator has just removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One share group with its members and its use."""

    group: ShareGroupView
    members: tuple[TenantView, ...]
    use: Use


@require_safe
@operator_page
def share_groups(request: HttpRequest, operator: User) -> HttpResponse:
    """Show every share group, and what has become of one that was just removed."""
    name, version = request.session.pop(REMOVED, ("", 0))
    found = selectors.policy_acks(version) if name else None
    is_its = found is not None and found.share_group == name  # else a change of something else has overtaken it
    shown = {"removed": name, "acks": found if is_its else None, "acks_url": acks_url(name) if name else ""}
    return render(request, "share_groups/page.html", table() | shown)


@require_safe
@operator_page
def rows(request: HttpRequest, operator: User) -> HttpResponse:
    """Return the part of the page that is fetched anew when the feed had a gap."""
    return render(request, "share_groups/list.html", table())


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page
def new(request: HttpRequest, operator: User) -> HttpResponse:
    """Show the form of a new group; on POST make it, and offer what comes next."""
    if request.method != "POST":
        return _form(request, NewGroupForm())
    form = NewGroupForm(request.POST)
    if not form.is_valid():
        return _form(request, form, status=422)
    try:
        made = create_share_group(**form.cleaned_data, actor=actor(operator))
    except Invalid as error:
        form.add_error(error.field if error.field in form.fields else None, error.message)
        return _form(request, form, status=422)
    except Conflict as error:
        form.add_error("name", error.message)
        return _form(request, form, status=422)
    shown = {"group": made, "acks": selectors.policy_acks(made.version), "acks_url": acks_url(made.name)}
    return render(request, "share_groups/created.html", table() | shown)


@require_POST
@operator_page
def guarantees(request: HttpRequest, operator: User) -> HttpResponse:
    """Return what the form's guarantee would add up to, without making the group."""
    form = NewGroupForm(request.POST)
    return render(request, "limits/guarantees.html", {"guarantees": _guarantees(form), "form": form})


def table() -> dict[str, Any]:
    """Return what the list shows."""
    now = readings()
    return {
        "rows": [
            Row(group=group, members=members(group), use=now.of_group(group.name)) for group in selectors.share_groups()
        ],
        "readings": now,
    }


def members(group: ShareGroupView) -> tuple[TenantView, ...]:
    """Return the tenants that share in a group, by slug."""
    slugs = set(group.tenants)
    return tuple(tenant for tenant in selectors.tenants() if tenant.slug in slugs) if slugs else ()


def acks_url(name: str) -> str:
    """Return where the line of a version asks: the version and a slash are added."""
    return reverse("operator-share-group", args=[name]) + "acks/"


def _form(request: HttpRequest, form: NewGroupForm, status: int = 200) -> HttpResponse:
    shown = {"form": form, "guarantees": _guarantees(form)}
    return render(request, "share_groups/form.html", shown, status=status)


def _guarantees(form: NewGroupForm) -> Guarantees:
    form.is_valid()  # cleans what there is; a field that is wrong guarantees nothing
    soft = form.cleaned_data.get("kv_soft_bytes", 0) if form.is_bound else 0
    return limits_form.guarantees(before=0, after=soft)
