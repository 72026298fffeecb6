"""Draining a worker from the fleet's panel."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from gateway.console.access import operator_page
from gateway.console.tenants import fleet_parts
from tenants.console.access import actor
from tenants.errors import NotFound
from tenants.models import User
from tenants.services.workers import set_draining


@require_POST
@operator_page
def drain(request: HttpRequest, operator: User, worker_id: str) -> HttpResponse:
    """Let a worker take no new requests, or take them again; return the fleet anew."""
    try:
        set_draining(worker_id=worker_id, draining="draining" in request.POST, actor=actor(operator))
    except NotFound as error:
        raise Http404 from error
    return render(request, "operator/fleet.html", fleet_parts(request))
