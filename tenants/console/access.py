"""Who may see a tenant's page: checked on every view, and closed to strangers as if nothing were there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from tenants import selectors
from tenants.authority import Right, RoleName, may
from tenants.contracts import Actor, TenantView
from tenants.models import User

P = ParamSpec("P")
PlaceView = Callable[Concatenate[HttpRequest, "Place", P], HttpResponse]
SlugView = Callable[..., HttpResponse]  # Django passes the slug by name, which Concatenate cannot say


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The tenant whose page this is, and who is here."""

    tenant: TenantView
    role: RoleName
    user: User

    @property
    def may_write_keys(self) -> bool:
        """Whether the reader may create and revoke keys."""
        return may(self.role, "keys.write")

    @property
    def may_write_prefixes(self) -> bool:
        """Whether the reader may register prefixes for the tenant's share group, and remove the tenant's own."""
        return may(self.role, "manage")

    @property
    def actor(self) -> Actor:
        """The reader as the audit trail names them."""
        return actor(self.user)


def actor(user: User) -> Actor:
    """Return a person as the audit trail names them."""
    return Actor("user", str(user.pk), user.email)


def tenant_page(right: Right = "read") -> Callable[[PlaceView[P]], SlugView]:
    """Wrap a view of one tenant, named by the slug in the URL: the view gets the `Place`.

    Signed out: the sign-in page. A stranger, or no such tenant: 404. A member without `right`: 403. A part that an open
    page asks for is no error even then: see `answered`.
    """

    def wrap(view: PlaceView[P]) -> SlugView:
        @wraps(view)
        def checked(request: HttpRequest, slug: str, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            user = request.user
            if not isinstance(user, User):
                return to_sign_in(request)
            tenant = selectors.tenant(slug)
            role = selectors.role_of(user, tenant.id) if tenant is not None else None
            if tenant is None or role is None:
                return nothing_here(request)

            def allowed() -> HttpResponse:
                if not may(role, right):
                    raise PermissionDenied
                return view(request, Place(tenant=tenant, role=role, user=user), *args, **kwargs)

            return answered(request, allowed)

        return checked

    return wrap


def to_sign_in(request: HttpRequest) -> HttpResponse:
    """Send a signed-out reader to the sign-in page and back; a swap by htmx takes the whole page there."""
    if request.headers.get("HX-Request") != "true":
        return redirect_to_login(request.get_full_path())
    return go_to("sign-in")


def nothing_here(request: HttpRequest) -> HttpResponse:
    """Say 404 to who may not know what is here; a page that was opened while they might leads to where they may be."""
    if not asks_for_part(request):
        raise Http404
    return go_to("home")


def answered(request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
    """Return the view's answer; where a part of an open page is gone or forbidden by now, all of the page is read anew.

    Pages ask by themselves, again and again: what has ended meanwhile (a version, a prefix, a group, a right) is no
    error of their readers.
    """
    try:
        return view()
    except (Http404, PermissionDenied):
        if not asks_for_part(request):
            raise
    anew = HttpResponse()
    anew["HX-Refresh"] = "true"
    return anew


def asks_for_part(request: HttpRequest) -> bool:
    """Whether the script of an open page asks for a part of it."""
    return request.method == "GET" and request.headers.get("HX-Request") == "true"


def go_to(route: str) -> HttpResponse:
    """Let the script of an open page open another one instead."""
    away = HttpResponse()
    away["HX-Redirect"] = reverse(route)
    return away
