"""One share group's page for operators: its limits with their effect, its prefixes, its members, its end."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import msgspec
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gateway.console import policy_form, share_group_form
from gateway.console.access import operator_page
from gateway.console.acks import acks_line
from gateway.console.share_group_form import LimitsForm
from gateway.console.share_groups import REMOVED, acks_url, members
from tenants import selectors
from tenants.console import prefix_desk
from tenants.console.access import actor
from tenants.console.prefix_desk import Desk
from tenants.console.readings import readings
from tenants.contracts import ShareGroupView
from tenants.errors import Conflict, Invalid, NotFound, StaleVersion
from tenants.models import User
from tenants.services.share_groups import remove_share_group, update_share_group

P = ParamSpec("P")
GroupView = Callable[..., HttpResponse]  # Django passes the name by name, which Concatenate cannot say


def group_page(view: Callable[Concatenate[HttpRequest, User, ShareGroupView, P], HttpResponse]) -> GroupView:
    """Wrap a view of one group, named in the URL: the view gets the operator and the group. No such group: 404."""

    @wraps(view)
    def found(request: HttpRequest, operator: User, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        group = selectors.share_group(str(kwargs.pop("name")))
        if group is None:
            raise Http404
        return view(request, operator, group, *args, **kwargs)

    return operator_page(found)


@require_http_methods(["GET", "HEAD", "POST"])
@group_page
def share_group(request: HttpRequest, operator: User, group: ShareGroupView) -> HttpResponse:
    """Show a group; on POST change its limits, if nobody else did since they were read."""
    if request.method != "POST":
        desk = _desk(operator, group)
        shown = {"desk": desk, "rows": prefix_desk.rows(desk), "members": members(group)}
        return render(request, "share_groups/group.html", _shown(group, _fresh(group)) | shown)
    form = LimitsForm(request.POST)
    current = share_group_form.limits(group)
    if not form.is_valid():
        return _editor(request, group, form, status=422)
    # A group's version moves with its prefixes too, which the editor does not show: what counts is what it did show.
    if form.cleaned_data["base"] != current:
        return _conflict(request, group.name, form)
    changes = form.changes(current)
    if not changes:
        return _editor(request, group, _fresh(group))
    try:
        saved = update_share_group(
            name=group.name, expected_version=group.version, changes=changes, actor=actor(operator)
        )
    except Invalid as error:
        form.add_error(error.field if error.field in form.fields else None, error.message)
        return _editor(request, group, form, status=422)
    except StaleVersion:
        return _conflict(request, group.name, form)
    except NotFound as error:
        raise Http404 from error
    return _editor(request, saved, _fresh(saved), acks=selectors.policy_acks(saved.version))


@require_POST
@group_page
def effect(request: HttpRequest, operator: User, group: ShareGroupView) -> HttpResponse:
    """Return what the form's values would do, without doing it."""
    return render(request, "share_groups/effect.html", _shown(group, LimitsForm(request.POST)))


@require_safe
@operator_page
def acks(request: HttpRequest, operator: User, name: str, version: int) -> HttpResponse:
    """Return how far a version has come, be it the one that removed the group."""
    found = selectors.policy_acks(version)
    if found is None or found.share_group != name:
        raise Http404
    return acks_line(request, found, acks_url(name))


@require_http_methods(["GET", "HEAD", "POST"])
@group_page
def remove(request: HttpRequest, operator: User, group: ShareGroupView) -> HttpResponse:
    """Ask whether to remove the group; on POST remove it, if it is still the one that was asked about."""
    if request.method != "POST":
        is_kept = "keep" in request.GET
        shown = {"group": group, "members": members(group), "asks": not is_kept, "is_kept": is_kept}
        return render(request, "share_groups/end.html", shown)
    seen = (request.POST.get("version", ""), request.POST.get("members", ""))
    if seen != (str(group.version), ",".join(group.tenants)):
        return _asked_again(request, group.name)
    try:
        remove_share_group(
            name=group.name, actor=actor(operator), detach=bool(group.tenants), expected_version=group.version
        )
    except Conflict:
        return _asked_again(request, group.name)
    except NotFound as error:
        raise Http404 from error
    request.session[REMOVED] = [group.name, selectors.policy_version()]  # the list says so, once
    answer = HttpResponse()
    answer["HX-Redirect"] = reverse("operator-share-groups")
    return answer


@require_safe
@group_page
def prefixes(request: HttpRequest, operator: User, group: ShareGroupView) -> HttpResponse:
    """Return the list of prefixes anew."""
    return prefix_desk.listed(request, _desk(operator, group))


@require_http_methods(["GET", "HEAD", "POST"])
@group_page
def new_prefix(request: HttpRequest, operator: User, group: ShareGroupView) -> HttpResponse:
    """Show the form of a new prefix; on POST register it."""
    return prefix_desk.new(request, _desk(operator, group))


@require_safe
@group_page
def prefix(request: HttpRequest, operator: User, group: ShareGroupView, prefix_id: str) -> HttpResponse:
    """Return one prefix, its contents or the question whether to remove it."""
    return prefix_desk.one(request, _desk(operator, group), prefix_id)


@require_POST
@group_page
def remove_prefix(request: HttpRequest, operator: User, group: ShareGroupView, prefix_id: str) -> HttpResponse:
    """Remove a prefix, whoever registered it."""
    return prefix_desk.remove(request, _desk(operator, group), prefix_id)


def _desk(operator: User, group: ShareGroupView) -> Desk:
    page_url = reverse("operator-share-group", args=[group.name])
    return Desk(
        group=group.name,
        page_url=page_url,
        url=f"{page_url}prefixes/",
        acks_url=acks_url(group.name),
        may_write=True,
        actor=actor(operator),
    )


def _fresh(group: ShareGroupView) -> LimitsForm:
    """Return the form as it is before anything is changed."""
    return LimitsForm(initial=share_group_form.initial(share_group_form.limits(group)))


def _editor(
    request: HttpRequest, group: ShareGroupView, form: LimitsForm, status: int = 200, **more: Any
) -> HttpResponse:
    return render(request, "share_groups/editor.html", _shown(group, form) | more, status=status)


def _conflict(request: HttpRequest, name: str, form: LimitsForm) -> HttpResponse:
    """Say what somebody else changed meanwhile, and put the operator's own changes on top of it, unsaved."""
    group = selectors.share_group(name)
    if group is None:
        raise Http404
    base, fresh = form.cleaned_data["base"], share_group_form.limits(group)
    theirs = [
        share_group_form.change(field, getattr(base, field), getattr(fresh, field))
        for field in share_group_form.LABELS
        if getattr(base, field) != getattr(fresh, field)
    ]
    return _editor(request, group, form.rebased(fresh), status=409, is_conflict=True, theirs=theirs)


def _asked_again(request: HttpRequest, name: str) -> HttpResponse:
    """Ask once more, with what has changed since."""
    group = selectors.share_group(name)
    if group is None:
        raise Http404
    shown = {"group": group, "members": members(group), "asks": True, "is_changed": True}
    return render(request, "share_groups/end.html", shown, status=409)


def _shown(group: ShareGroupView, form: LimitsForm) -> dict[str, Any]:
    """Return what the editor and its effect show."""
    now = readings()
    use = now.of_group(group.name)
    current = share_group_form.limits(group)
    changes: dict[str, Any] = form.changes(current) if form.is_valid() else {}
    after = msgspec.structs.replace(current, **changes)
    guarantees = policy_form.guarantees(before=current.kv_soft_bytes, after=after.kv_soft_bytes)
    return {
        "group": group,
        "form": form,
        "use": use,
        "readings": now,
        "after": after,
        "changes": [
            share_group_form.change(name, getattr(current, name), value, use.kv_bytes)
            for name, value in changes.items()
        ],
        "action": "Mend the values first" if form.errors else share_group_form.action(changes, current),
        "guarantees": guarantees,
        "is_ready": bool(changes) and guarantees.fits,
        "acks_url": acks_url(group.name),
    }
