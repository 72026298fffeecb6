"""The playground: a conversation with a model over `/v1/realtime`. Nothing of it is stored."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

from tenants import selectors
from tenants.console.access import Place, tenant_page


@require_safe
@ensure_csrf_cookie
@tenant_page("keys.write")
def playground(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the playground; it spends the tenant's limits, so it takes the right to make keys."""
    policy = selectors.policy(place.tenant.id)
    shown = {"place": place, "models": selectors.served_models(), "policy": policy}
    return render(request, "tenant/playground.html", shown)
