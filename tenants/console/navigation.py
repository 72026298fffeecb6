"""What the head of each page offers: the places a reader may go, and the way between tenants."""

from dataclasses import dataclass
from datetime import datetime

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from tenants import selectors
from tenants.console.access import Place
from tenants.contracts import TenantView
from tenants.models import User

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
    pages: list[tuple[str, str]] = []
    if place is not None:
        names = (("Overview", "tenant-overview"), ("Keys", "tenant-keys"), ("Playground", "tenant-playground"))
        pages = [(words, reverse(name, args=[place.tenant.slug])) for words, name in names]
    elif user.is_staff:
        pages = [("Tenants", reverse("operator-tenants"))]
    return Masthead(
        title=place.tenant.name if place else "Operator" if user.is_staff else "",
        colour=place.tenant.colour if place else None,
        links=tuple(Link(words=words, url=url, is_here=_is_here(request.path, url)) for words, url in pages),
        tenants=tuple(selectors.tenants_of(user)[:MOST_LISTED]),
        is_operator=user.is_staff,
    )


def short_moment(at: datetime) -> str:
    """Return a time in the words that suffice: today's by the clock, this year's by day, others with the year."""
    now = timezone.now()
    if at.date() == now.date():
        return f"today {at:%H:%M}"
    return f"{at.day} {at:%b}" if at.year == now.year else f"{at.day} {at:%b %Y}"


def _is_here(path: str, url: str) -> bool:
    """An entry stands for its page and for what lies below it; the overview only for itself."""
    return path == url or (path.startswith(url) and url.count("/") > 3) or (url.startswith("/operator/") and path.startswith(url))
