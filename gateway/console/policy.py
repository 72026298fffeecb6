"""The operator's policy page: change limits, see the effect before and the acks after."""

from collections.abc import Mapping
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gateway.console.access import operator_page
from gateway.console.acks import acks_line
from gateway.console.limits_editor import LimitsEditor
from gateway.console.policy_form import PolicyForm
from tenants import selectors
from tenants.console.readings import Readings, Use
from tenants.contracts import Actor, PolicyView, TenantView
from tenants.models import User
from tenants.services.policy import set_policy


class PolicyEditor(LimitsEditor[PolicyView]):
    """A tenant's policy as an operator edits it."""

    template = "operator/editor.html"
    noun = "policy"
    is_page = True

    def __init__(self, tenant: TenantView, policy: PolicyView) -> None:
        self.tenant = tenant
        self.current = policy
        self.version = policy.version
        self.name = tenant.name
        self.colour = tenant.colour
        self.feed_key = f"tenant:{tenant.id}"
        self.page_url = reverse("operator-policy", args=[tenant.slug])
        self.effect_url = reverse("operator-policy-effect", args=[tenant.slug])
        self.acks_url = f"{self.page_url}acks/"

    def form(self, data: Mapping[str, Any] | None = None) -> PolicyForm:
        """Return the form, as `data` has it or as it is before anything is changed."""
        groups = [group.name for group in selectors.share_groups()]
        return PolicyForm(data, initial=PolicyForm.initial_of(self.current), groups=groups)

    def use(self, now: Readings) -> Use:
        """Return what the tenant uses."""
        return now.of(self.tenant.id)

    def save(self, changes: dict[str, Any], by: Actor) -> "PolicyEditor":
        """Write a new version of the policy."""
        saved = set_policy(tenant_id=self.tenant.id, expected_version=self.version, changes=changes, actor=by)
        return PolicyEditor(self.tenant, saved)

    def reread(self) -> "PolicyEditor":
        """Return an editor of what is in force now."""
        return _editor(self.tenant.slug)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page
def policy(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Show a tenant's policy; on POST change it, if nobody else did since it was read."""
    editor = _editor(slug)
    if request.method == "POST":
        return editor.answer(request, operator)
    return render(request, "operator/policy.html", editor.shown(editor.form()))


@require_POST
@operator_page
def effect(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Return what the form's values would do, without doing it."""
    return _editor(slug).effect(request)


@require_safe
@operator_page
def acks(request: HttpRequest, operator: User, slug: str, version: int) -> HttpResponse:
    """Return how far a version has come."""
    editor = _editor(slug)
    found = selectors.policy_acks(version)
    if found is None or found.tenant_id != editor.tenant.id:
        raise Http404
    return acks_line(request, found, editor.acks_url)


def _editor(slug: str) -> PolicyEditor:
    tenant = selectors.tenant(slug)
    current = selectors.policy(tenant.id) if tenant is not None else None
    if tenant is None or current is None:
        raise Http404
    return PolicyEditor(tenant, current)
