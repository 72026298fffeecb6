"""The operator's policy page: change limits, see the effect before and the acks after."""

from typing import Any

import msgspec
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gateway.console import policy_form
from gateway.console.access import operator_page
from gateway.console.acks import acks_line
from gateway.console.policy_form import PolicyForm
from tenants import selectors
from tenants.console.access import actor
from tenants.console.readings import readings
from tenants.contracts import PolicyView, TenantView
from tenants.errors import PolicyInvalid, StaleVersion
from tenants.models import User
from tenants.services.policy import set_policy


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page
def policy(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Show a tenant's policy; on POST change it, if nobody else did since it was read."""
    tenant, current = _tenant_and_policy(slug)
    if request.method != "POST":
        return render(request, "operator/policy.html", _shown(tenant, current, _fresh(current)))
    form = PolicyForm(request.POST, groups=_groups())
    if not form.is_valid():
        return _editor(request, tenant, current, form, status=422)
    if form.cleaned_data["base"].version != current.version:
        return _conflict(request, tenant, form)
    changes = form.changes(current)
    if not changes:
        return _editor(request, tenant, current, _fresh(current))
    try:
        saved = set_policy(
            tenant_id=tenant.id, expected_version=current.version, changes=changes, actor=actor(operator)
        )
    except PolicyInvalid as error:
        form.add_error(error.field if error.field in form.fields else None, error.message)
        return _editor(request, tenant, current, form, status=422)
    except StaleVersion:
        return _conflict(request, tenant, form)
    return _editor(request, tenant, saved, _fresh(saved), acks=selectors.policy_acks(saved.version))


@require_POST
@operator_page
def effect(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Return what the form's values would do, without doing it."""
    tenant, current = _tenant_and_policy(slug)
    form = PolicyForm(request.POST, groups=_groups())
    return render(request, "operator/effect.html", _shown(tenant, current, form))


@require_safe
@operator_page
def acks(request: HttpRequest, operator: User, slug: str, version: int) -> HttpResponse:
    """Return how far a version has come."""
    tenant, _ = _tenant_and_policy(slug)
    found = selectors.policy_acks(version)
    if found is None or found.tenant_id != tenant.id:
        raise Http404
    return acks_line(request, found, _acks_url(slug))


def _acks_url(slug: str) -> str:
    return reverse("operator-policy", args=[slug]) + "acks/"


def _tenant_and_policy(slug: str) -> tuple[TenantView, PolicyView]:
    tenant = selectors.tenant(slug)
    current = selectors.policy(tenant.id) if tenant is not None else None
    if tenant is None or current is None:
        raise Http404
    return tenant, current


def _fresh(current: PolicyView) -> PolicyForm:
    """Return the form as it is before anything is changed."""
    return PolicyForm(initial=policy_form.initial(current), groups=_groups())


def _groups() -> list[str]:
    return [group.name for group in selectors.share_groups()]


def _editor(
    request: HttpRequest, tenant: TenantView, current: PolicyView, form: PolicyForm, status: int = 200, **more: Any
) -> HttpResponse:
    return render(request, "operator/editor.html", _shown(tenant, current, form) | more, status=status)


def _conflict(request: HttpRequest, tenant: TenantView, form: PolicyForm) -> HttpResponse:
    """Say what somebody else changed meanwhile, and put the operator's own changes on top of it, unsaved."""
    _, fresh = _tenant_and_policy(tenant.slug)
    base = form.cleaned_data["base"]
    theirs = [
        policy_form.change(name, getattr(base, name), getattr(fresh, name))
        for name in policy_form.LABELS
        if getattr(base, name) != getattr(fresh, name)
    ]
    return _editor(request, tenant, fresh, form.rebased(fresh), status=409, is_conflict=True, theirs=theirs)


def _shown(tenant: TenantView, current: PolicyView, form: PolicyForm) -> dict[str, Any]:
    """Return what the editor and its effect show."""
    now = readings()
    use = now.of(tenant.id)
    changes: dict[str, Any] = form.changes(current) if form.is_valid() else {}
    after = msgspec.structs.replace(current, **changes)
    guarantees = policy_form.guarantees(before=current.kv_soft_bytes, after=after.kv_soft_bytes)
    return {
        "tenant": tenant,
        "policy": current,
        "form": form,
        "use": use,
        "readings": now,
        "after": after,
        "changes": [
            policy_form.change(name, getattr(current, name), value, use.kv_bytes) for name, value in changes.items()
        ],
        "action": "Mend the values first" if form.errors else policy_form.action(changes, current),
        "guarantees": guarantees,
        "is_ready": bool(changes) and guarantees.fits,
        "acks_url": _acks_url(tenant.slug),
    }
