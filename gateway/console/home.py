"""The way in: each reader to the page where their work starts."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from tenants import selectors
from tenants.console.access import to_sign_in
from tenants.models import User


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Send an operator to the tenants, a member to their first tenant, and tell anybody else how to become one."""
    user = request.user
    if not isinstance(user, User):
        return to_sign_in(request)
    if user.is_staff:
        return redirect("operator-tenants")
    mine = selectors.tenants_of(user)
    if mine:
        return redirect("tenant-overview", slug=mine[0].slug)
    return render(request, "no_tenant.html")
