"""Who is at the other end of a realtime socket: an API key, or a member of a tenant in the console."""

import time
from importlib import import_module
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest
from django.http.request import validate_host
from redis.exceptions import RedisError
from starlette.types import Scope

from gateway.api.auth import bearer, check
from gateway.api.errors import Forbidden, InvalidKey, Overloaded
from gateway.reads import StoreAway
from gateway.realtime.sockets import RECHECK_SECONDS
from gateway.web import Web
from tenants import rows, selectors
from tenants.authority import may
from tenants.contracts import KeyGrant
from tenants.models import Policy, Project, Tenant, User

SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."


class KeyCaller:
    """A client that showed a key."""

    def __init__(self, web: Web, raw: str, client: str | None) -> None:
        self._web = web
        self._raw = raw
        self._client = client

    async def grant(self) -> KeyGrant:
        """Return what the key may do now. Raises as `KeyCache.grant` and `check`."""
        grant = await self._web.keys.grant(self._raw)
        check(grant, scope="generate", client=self._client, now=time.time())
        return grant

    async def recheck(self) -> None:
        """Check the key as it is now. Raises as `grant`."""
        await self.grant()


class SessionCaller:
    """A signed-in user who tries a tenant's models in the console; spends that tenant's limits."""

    def __init__(self, web: Web, session_key: str, slug: str) -> None:
        self._web = web
        self._session_key = session_key
        self._slug = slug
        self._grant: KeyGrant | None = None
        self._checked_at = 0.0

    async def grant(self) -> KeyGrant:
        """Return a grant of the tenant's, checked again every RECHECK_SECONDS.

        Raises:
            InvalidKey: nobody is signed in.
            Forbidden: the user may not spend this tenant's limits.
            Overloaded: that can't be read just now, and it never was.
        """
        if self._grant is not None and time.monotonic() - self._checked_at < RECHECK_SECONDS:
            return self._grant
        try:
            self._grant = await self._web.reads.run(member_grant, self._session_key, self._slug)
            self._checked_at = time.monotonic()
        except (StoreAway, RedisError) as error:
            if self._grant is None:
                raise Overloaded("The session can't be checked just now. Try again.") from error
        return self._grant

    async def recheck(self) -> None:
        """Check the session and the membership as they are now. Raises as `grant`."""
        self._checked_at = 0.0
        await self.grant()


Caller = KeyCaller | SessionCaller


def caller_of(web: Web, scope: Scope) -> Caller:
    """Return who dials: by subprotocol, Authorization header or console session, in this order.

    A browser sends the session's cookie with any page's socket, so a session counts only on a page of this host.

    Raises:
        InvalidKey: neither a key nor a session.
        Forbidden: a session on a foreign page.
    """
    headers = dict(scope["headers"])
    client = scope["client"][0] if scope.get("client") else None
    offered = [name for name in scope.get("subprotocols", ()) if name.startswith(KEY_SUBPROTOCOL)]
    if offered:
        return KeyCaller(web, offered[0].removeprefix(KEY_SUBPROTOCOL), client)
    if b"authorization" in headers:
        return KeyCaller(web, bearer(scope["headers"]), client)
    session_key = scope.get("cookies", {}).get(settings.SESSION_COOKIE_NAME, "")
    slug = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("tenant", [""])[0]
    if not session_key or not slug:
        raise InvalidKey("Send an API key as a subprotocol or a bearer token, or sign in to the console.")
    if not own_origin(headers):
        raise Forbidden("A console session may only be used from the console's own pages.")
    return SessionCaller(web, session_key, slug)


def own_origin(headers: dict[bytes, bytes]) -> bool:
    """Tell whether the page that dials is served by the host that it dials; browsers always say."""
    host = headers.get(b"host", b"").decode("latin-1")
    try:
        origin = urlsplit(headers.get(b"origin", b"").decode("latin-1"))
        name = origin.hostname or ""
    except ValueError:
        return False
    return origin.netloc == host and validate_host(f"[{name}]" if ":" in name else name, settings.ALLOWED_HOSTS)


def session_user(session_key: str) -> User | None:
    """Return who is signed in by a console session: nobody once it has expired or the password has changed."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    return user if isinstance(user, User) and user.is_active else None


def member_grant(session_key: str, slug: str) -> KeyGrant:
    """Return the grant of a signed-in member who may make keys: who may not, may not spend either.

    Raises:
        InvalidKey, Forbidden: as `SessionCaller.grant`.
    """
    user = session_user(session_key)
    if user is None:
        raise InvalidKey("Your session has ended: sign in again.")
    tenant = Tenant.objects.filter(slug=slug, status="active").first()
    if tenant is None or not may(selectors.role_of(user, tenant.pk) or "", "keys.write"):
        raise Forbidden("You may not use this tenant's models.")
    policy = Policy.objects.for_tenant(tenant.pk).get()
    project = Project.objects.for_tenant(tenant.pk).order_by("created_at").first()
    return KeyGrant(
        key_id="",
        tenant_id=str(tenant.pk),
        tenant_slug=tenant.slug,
        project_id=str(project.pk) if project else "",
        namespace=rows.namespace(tenant.secret),
        models=(),
        expires_at=0.0,
        ip_ranges=(),
        rpm=0,
        tpm=0,
        policy=rows.policy_view(policy),
    )
