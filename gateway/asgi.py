"""The web process: one ASGI application.

http       /v1, /static, and BESIDE_TOO      gateway.api.app (Starlette, no middleware)
           all else                          Django, behind `gateway.bodies`
websocket  /v1/realtime                      gateway.realtime.consumers
           /ws/live/                         gateway.console.live
lifespan   starts and stops `gateway.web.Web`
"""

import gc
import os
import uuid
from pathlib import Path
from typing import Any, cast

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.sessions import CookieMiddleware
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.unserved import lacks_prefix, refuse_path, refuse_socket
from gateway.origins import shared

BESIDE_DJANGO = ("/v1/", "/static/")
BESIDE_TOO = ("/v1", "/healthz", "/readyz", "/tokenize", "/detokenize")


class RequestIds:
    """Give each HTTP request an id, in `scope["state"]["request_id"]` and as `x-request-id` on its response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request_id = f"req_{uuid.uuid4().hex}"
        header = (b"x-request-id", request_id.encode())
        scope.setdefault("state", {})["request_id"] = request_id

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self._app(scope, receive, named)


class Split:
    """Send each path to Django or to the application beside it; who forgot the API's prefix is told so."""

    def __init__(self, beside: ASGIApp, django: Any, base_url: str) -> None:
        self._beside = beside
        self._django = django
        self._base_url = base_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path: str = scope["path"]
        if path.startswith(BESIDE_DJANGO) or path in BESIDE_TOO:
            await self._beside(scope, receive, send)
        elif lacks_prefix(scope):
            await refuse_path(scope, send, self._base_url)
        else:
            await self._django(scope, receive, send)


def build() -> ASGIApp:
    """Return the application."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    django = get_asgi_application()

    # These need Django's registry of models.
    from gateway.api.app import build as build_api
    from gateway.bodies import BodyLimit
    from gateway.config import config
    from gateway.console.live import LiveConsumer
    from gateway.realtime.consumers import RealtimeConsumer

    if not config().secret_key or not config().key_pepper:
        raise ImproperlyConfigured("SECRET_KEY and KEY_PEPPER must be set: `make serve` makes them, see README")
    from django.urls import path, re_path

    api = build_api(config(), Path(settings.STATIC_ROOT))
    sockets = URLRouter(
        [
            path("v1/realtime", CookieMiddleware(RealtimeConsumer.as_asgi())),
            path("ws/live/", AuthMiddlewareStack(LiveConsumer.as_asgi())),
            re_path("", cast(Any, refuse_socket)),  # channels routes ASGI applications, Django's types say views
        ]
    )
    split = Split(shared(api, config().cors_origins), BodyLimit(cast(ASGIApp, django)), config().base_url)
    routes = {"http": RequestIds(split), "websocket": sockets, "lifespan": api}
    return cast(ASGIApp, ProtocolTypeRouter(routes))


application = build()
gc.freeze()  # what is loaded stays: a collection that looks at all of it holds every stream up, for 50 ms
