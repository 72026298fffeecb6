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

    Signed out: the sign-in page. A stranger, or no such tenant: 404. A member without `right`: 403.
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
                raise Http404
            if not may(role, right):
                raise PermissionDenied
            return view(request, Place(tenant=tenant, role=role, user=user), *args, **kwargs)

        return checked

    return wrap


def to_sign_in(request: HttpRequest) -> HttpResponse:
    """Send a signed-out reader to the sign-in page and back; a swap by htmx takes the whole page there."""
    if request.headers.get("HX-Request") != "true":
        return redirect_to_login(request.get_full_path())
    response = HttpResponse(status=200)
    response["HX-Redirect"] = reverse("sign-in")
    return response


def whole_page_anew() -> HttpResponse:
    """Answer a part of a page that refreshes itself when what the page is about is gone: all of it is read again."""
    response = HttpResponse()
    response["HX-Refresh"] = "true"
    return response
