"""How a tenant's KV is kept, below its sessions: encrypted on disk or not, and the way to erase all of it."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from gateway.console.acks import acks_line
from gateway.workers import erasures
from tenants import selectors
from tenants.authority import may
from tenants.console.access import Place, tenant_page
from tenants.errors import Conflict, StaleVersion
from tenants.services.policy import set_policy

QUESTIONS = ("encrypt", "decrypt", "erase")


@require_safe
@tenant_page()
def panel(request: HttpRequest, place: Place) -> HttpResponse:
    """Return the panel, with the question that `?ask` names."""
    asks = request.GET.get("ask", "")
    return _panel(request, place, asks=asks if asks in QUESTIONS and _may_write(place) else "")


@require_POST
@tenant_page("owners.write")
def encrypt(request: HttpRequest, place: Place) -> HttpResponse:
    """Encrypt what is written to disk from now on, or no longer; what is there is given up either way."""
    seen = request.POST.get("seen", "")
    wanted = request.POST.get("encrypt") == "on"
    policy = selectors.policy(place.tenant.id)
    if policy is not None and policy.encrypt_disk == wanted:
        return _panel(request, place)
    try:
        after = set_policy(
            tenant_id=place.tenant.id,
            expected_version=int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 19 else -1,
            changes={"encrypt_disk": wanted},
            actor=place.actor,
        )
    except StaleVersion:
        return _panel(request, place, problem="Somebody has changed the policy meanwhile. Look again, and repeat it.")
    return _panel(request, place, version=after.version)


@require_POST
@tenant_page("owners.write")
def erase(request: HttpRequest, place: Place) -> HttpResponse:
    """Erase all that is kept of the tenant."""
    try:
        policy, erased = erasures.erase_kv(tenant_id=place.tenant.id, actor=place.actor)
    except Conflict as error:
        return _panel(request, place, problem=f"{error.message[:1].upper()}{error.message[1:]}.")
    return _panel(request, place, version=policy.version, erased=erased)


@require_safe
@tenant_page()
def acks(request: HttpRequest, place: Place, version: int) -> HttpResponse:
    """Return how far a version of the tenant's policy has come."""
    found = selectors.policy_acks(version)
    if found is None or found.tenant_id != place.tenant.id:
        raise Http404
    return acks_line(request, found, _acks_url(place))


def shown(place: Place) -> dict[str, Any]:
    """Return what the panel shows."""
    return {
        "place": place,
        "policy": selectors.policy(place.tenant.id),
        "may_write": _may_write(place),
        "acks_url": _acks_url(place),
    }


def _panel(request: HttpRequest, place: Place, *, version: int = 0, **more: Any) -> HttpResponse:
    found = selectors.policy_acks(version) if version else None
    return render(request, "sessions/keeping.html", shown(place) | {"acks": found} | more)


def _may_write(place: Place) -> bool:
    return may(place.role, "owners.write")


def _acks_url(place: Place) -> str:
    return reverse("tenant-keeping", args=[place.tenant.slug]) + "acks/"
