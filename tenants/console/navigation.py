"""What the head of each page offers: the places a reader may go, and the way between tenants."""

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from tenants import selectors
from tenants.authority import Right, may
from tenants.console.access import Place
from tenants.contracts import TenantView
from tenants.models import User

TENANT_PAGES: tuple[tuple[str, str, bool, Right], ...] = (  # words, route, whether it stands for its page alone, right
    ("Overview", "tenant-overview", True, "read"),
    ("Keys", "tenant-keys", False, "read"),
    ("Prefixes", "tenant-prefixes", False, "read"),
    ("Sessions", "tenant-sessions", False, "read"),
    ("Playground", "tenant-playground", False, "keys.write"),
)
OPERATOR_PAGES = (
    ("Tenants", "operator-tenants"),
    ("Pressure", "operator-pressure"),
    ("Share groups", "operator-share-groups"),
)
MOST_LISTED = 50  # tenants in the switcher; an operator finds the rest on the tenants page


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One entry of the navigation."""

    words: str
    url: str
    is_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Masthead:
    """The head of a page for one reader."""

    title: str  # the tenant's name, or "Operator"
    colour: int | None
    links: tuple[Link, ...]
    tenants: tuple[TenantView, ...]
    is_operator: bool


def masthead(request: HttpRequest, place: Place | None) -> Masthead:
    """Return the head for the signed-in reader; `place` is the tenant whose page this is, if any."""
    user = request.user
    if not isinstance(user, User):
        return Masthead(title="", colour=None, links=(), tenants=(), is_operator=False)
    if place is not None:
        pages = [
            (words, reverse(name, args=[place.tenant.slug]), whole)
            for words, name, whole, right in TENANT_PAGES
            if may(place.role, right)
        ]
    else:
        pages = [(words, reverse(name), False) for words, name in OPERATOR_PAGES] if user.is_staff else []
    return Masthead(
        title=place.tenant.name if place else "Operator" if user.is_staff else "",
        colour=place.tenant.colour if place else None,
        links=tuple(_link(request, *page) for page in pages),
        tenants=tuple(selectors.tenants_of(user)[:MOST_LISTED]),
        is_operator=user.is_staff,
    )


def _link(request: HttpRequest, words: str, url: str, is_whole: bool) -> Link:
    """Return an entry; it stands for what lies below its page too, unless everything does."""
    here = request.path == url if is_whole else request.path.startswith(url)
    return Link(words=words, url=url, is_here=here)
