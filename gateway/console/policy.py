"""The operator's policy page: change limits, see the effect before and the acks after."""

from typing import Any

import msgspec
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gateway.console import policy_form
from gateway.console.access import operator_page
from gateway.console.policy_form import Guarantees, PolicyForm
from tenants import selectors
from tenants.console.access import actor
from tenants.console.readings import readings
from tenants.contracts import PolicyView, TenantView
from tenants.errors import PolicyInvalid, StaleVersion
from tenants.models import User
from tenants.services.policy import set_policy

LATE_SECONDS = 3.0  # a version that is not everywhere by then is shown with the workers that it waits for


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page
def policy(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Show a tenant's policy; on POST change it, if nobody else did since it was read."""
    tenant, current = _tenant_and_policy(slug)
    if request.method != "POST":
        form = PolicyForm(initial=policy_form.initial(current))
        return render(request, "operator/policy.html", _shown(tenant, current, form))
    form = PolicyForm(request.POST)
    if not form.is_valid():
        return _editor(request, tenant, current, form, status=422)
    if form.cleaned_data["base"].version != current.version:
        return _conflict(request, tenant, form)
    changes = form.changes(current)
    if not changes:
        return _editor(request, tenant, current, PolicyForm(initial=policy_form.initial(current)))
    try:
        saved = set_policy(
            tenant_id=tenant.id, expected_version=current.version, changes=changes, actor=actor(operator)
        )
    except PolicyInvalid as error:
        form.add_error(error.field if error.field in form.fields else None, error.message)
        return _editor(request, tenant, current, form, status=422)
    except StaleVersion:
        return _conflict(request, tenant, form)
    fresh = PolicyForm(initial=policy_form.initial(saved))
    return _editor(request, tenant, saved, fresh, acks=selectors.policy_acks(saved.version))


@require_POST
@operator_page
def effect(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Return what the form's values would do, without doing it."""
    tenant, current = _tenant_and_policy(slug)
    form = PolicyForm(request.POST)
    return render(request, "operator/effect.html", _shown(tenant, current, form))


@require_safe
@operator_page
def acks(request: HttpRequest, operator: User, slug: str, version: int) -> HttpResponse:
    """Return how far a version has come."""
    tenant, _ = _tenant_and_policy(slug)
    found = selectors.policy_acks(version)
    if found is None or found.tenant_id != tenant.id:
        raise Http404
    waited = (timezone.now() - found.changed_at).total_seconds()
    late = [ack.worker_id for ack in found.workers if ack.ms is None] if waited > LATE_SECONDS else []
    return render(request, "operator/acks.html", {"tenant": tenant, "acks": found, "late": late})


def _tenant_and_policy(slug: str) -> tuple[TenantView, PolicyView]:
    tenant = selectors.tenant(slug)
    current = selectors.policy(tenant.id) if tenant is not None else None
    if tenant is None or current is None:
        raise Http404
    return tenant, current


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
    others = sum(policy.kv_soft_bytes for owner, policy in selectors.policies() if owner != tenant.id)
    guarantees = Guarantees(
        before=others + current.kv_soft_bytes, after=others + after.kv_soft_bytes, pool=selectors.pool_bytes()
    )
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
    }
