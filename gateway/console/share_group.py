"""One share group's page for operators: its limits with their effect, its prefixes, its members, its end."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gateway.console.access import operator_page
from gateway.console.acks import acks_line
from gateway.console.limits_editor import LimitsEditor
from gateway.console.share_group_form import GroupLimits, GroupLimitsForm, limits
from gateway.console.share_groups import REMOVED, acks_url, members
from tenants import selectors
from tenants.console import prefix_desk
from tenants.console.access import actor, asks_for_part, go_to
from tenants.console.prefix_desk import Desk
from tenants.console.readings import Readings, Use
from tenants.contracts import Actor, ShareGroupView
from tenants.errors import Conflict, NotFound
from tenants.models import User
from tenants.services.share_groups import remove_share_group, update_share_group

P = ParamSpec("P")
GroupView = Callable[..., HttpResponse]  # Django passes the name by name, which Concatenate cannot say


class GroupEditor(LimitsEditor[GroupLimits]):
    """A share group's limits as an operator edits them.

    A group's version moves with its prefixes too, which the editor does not show: what tells a conflict is what it did
    show.
    """

    template = "share_groups/editor.html"
    noun = "group"
    is_shared = True

    def __init__(self, group: ShareGroupView) -> None:
        self.group = group
        self.current = limits(group)
        self.version = group.version
        self.name = group.name
        self.feed_key = f"group:{group.name}"
        self.page_url = reverse("operator-share-group", args=[group.name])
        self.effect_url = reverse("operator-share-group-effect", args=[group.name])
        self.acks_url = acks_url(group.name)

    def form(self, data: Mapping[str, Any] | None = None) -> GroupLimitsForm:
        """Return the form, as `data` has it or as it is before anything is changed."""
        return GroupLimitsForm(data, initial=GroupLimitsForm.initial_of(self.current))

    def use(self, now: Readings) -> Use:
        """Return what the group uses."""
        return now.of_group(self.name)

    def save(self, changes: dict[str, Any], by: Actor, *, overcommit: bool) -> "GroupEditor":
        """Change the group's limits."""
        try:
            saved = update_share_group(
                name=self.name, expected_version=self.version, changes=changes, actor=by, overcommit=overcommit
            )
        except NotFound as error:
            raise Http404 from error
        return GroupEditor(saved)

    def reread(self) -> "GroupEditor":
        """Return an editor of what is in force now."""
        group = selectors.share_group(self.name)
        if group is None:
            raise Http404
        return GroupEditor(group)


def group_page(view: Callable[Concatenate[HttpRequest, User, ShareGroupView, P], HttpResponse]) -> GroupView:
    """Wrap a view of one group, named in the URL: the view gets the operator and the group.

    No such group: 404; a part of a page that asks for itself anew leads to the list of groups.
    """

    @wraps(view)
    def found(request: HttpRequest, operator: User, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        group = selectors.share_group(str(kwargs.pop("name")))
        if group is None:
            if asks_for_part(request):
                return go_to("operator-share-groups")
            raise Http404
        return view(request, operator, group, *args, **kwargs)

    return operator_page(found)


@require_http_methods(["GET", "HEAD", "POST"])
@group_page
def share_group(request: HttpRequest, operator: User, group: ShareGroupView) -> HttpResponse:
    """Show a group; on POST change its limits, if nobody else did since they were read."""
    editor = GroupEditor(group)
    if request.method == "POST":
        return editor.answer(request, operator)
    desk = _desk(operator, group)
    shown = {"group": group, "desk": desk, "rows": prefix_desk.rows(desk), "members": members(group)}
    return render(request, "share_groups/group.html", editor.shown(editor.form()) | shown)


@require_POST
@group_page
def effect(request: HttpRequest, operator: User, group: ShareGroupView) -> HttpResponse:
    """Return what the form's values would do, without doing it."""
    return GroupEditor(group).effect(request)


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
    return go_to("operator-share-groups")


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


def _asked_again(request: HttpRequest, name: str) -> HttpResponse:
    """Ask once more, with what has changed since."""
    group = selectors.share_group(name)
    if group is None:
        raise Http404
    shown = {"group": group, "members": members(group), "asks": True, "is_changed": True}
    return render(request, "share_groups/end.html", shown, status=409)
