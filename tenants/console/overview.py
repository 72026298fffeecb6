"""A tenant at a glance: what it uses of what it may, its limits, and the first request."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from tenants import selectors
from tenants.console.access import Place, tenant_page
from tenants.console.readings import readings


@require_safe
@tenant_page()
def overview(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the tenant's headroom its limits, and how to send a first request."""
    shown = _headroom(place) | {
        "base_url": request.build_absolute_uri("/v1"),
        "models": selectors.served_models(),
        "num_keys": sum(key.status == "active" for key in selectors.api_keys(place.tenant.id)),
    }
    return render(request, "tenant/overview.html", shown)


@require_safe
@tenant_page()
def headroom(request: HttpRequest, place: Place) -> HttpResponse:
    """Return the part of the overview that refreshes itself."""
    return render(request, "tenant/headroom.html", _headroom(place))


def _headroom(place: Place) -> dict[str, Any]:
    now = readings()
    policy = selectors.policy(place.tenant.id)
    assert policy is not None, "every tenant has a policy from its first transaction on"
    use = now.of(place.tenant.id)
    return {
        "place": place,
        "policy": policy,
        "use": use,
        "readings": now,
        "headroom_bytes": max(0, policy.kv_hard_bytes - use.kv_held_bytes),  # what is only cached makes room
        "borrowed_bytes": max(0, min(use.kv_bytes, policy.kv_hard_bytes) - policy.kv_soft_bytes),
    }
