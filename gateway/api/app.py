"""The Starlette application beside Django: `/v1`, health and static files, without the console's middleware."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gateway.api.chat import chat_completions
from gateway.api.completions import completions
from gateway.api.embeddings import embeddings
from gateway.api.exchange import Endpoint
from gateway.api.models import list_models, retrieve_model
from gateway.api.openapi import Document
from gateway.api.responses.endpoints import (
    cancel_response,
    count_input_tokens,
    create_response,
    delete_response,
    list_input_items,
    retrieve_response,
)
from gateway.api.sessions import changing, delete_session, list_sessions, retrieve_session
from gateway.api.tokens import detokenize, tokenize
from gateway.api.unserved import not_allowed, unknown
from gateway.config import GatewayConfig
from gateway.web import Web, running
from gateway.workers.sessions import Action

_HASHED = re.compile(r"^app/assets/.*-[0-9A-Za-z_-]{8}\.[0-9a-z]+$|\.[0-9a-f]{12}\.[0-9a-z]+$")  # Vite, Django
SESSION_ACTIONS: tuple[Action, ...] = ("pin", "unpin", "prefetch")
_IMMUTABLE = "public, max-age=31536000, immutable"


class HashedFiles(StaticFiles):
    """Static files; one whose name holds its hash is cached for ever, any other is asked for again."""

    async def get_response(self, path: str, scope: Any) -> Response:
        """Serve one file."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = _IMMUTABLE if _HASHED.search(path) else "no-cache"
        response.headers["x-content-type-options"] = "nosniff"
        return response


def build(config: GatewayConfig, static_root: Path) -> Starlette:
    """Return the application. Its lifespan owns the process's `Web`."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with running(config) as web:
            yield {"web": web}

    app = Starlette(
        routes=[
            Route("/v1/openapi.json", Document(), methods=["GET"]),
            Route("/v1/chat/completions", Endpoint(chat_completions), methods=["POST"]),
            Route("/v1/completions", Endpoint(completions), methods=["POST"]),
            Route("/v1/embeddings", Endpoint(embeddings), methods=["POST"]),
            *(
                Route(f"{prefix}/{name}", Endpoint(handler), methods=["POST"])
                for prefix in ("", "/v1")
                for name, handler in (("tokenize", tokenize), ("detokenize", detokenize))
            ),
            Route("/v1/responses", Endpoint(create_response), methods=["POST"]),
            Route("/v1/responses/input_tokens", Endpoint(count_input_tokens), methods=["POST"]),
            Route("/v1/responses/{response_id}", Endpoint(retrieve_response), methods=["GET"]),
            Route("/v1/responses/{response_id}", Endpoint(delete_response), methods=["DELETE"]),
            Route("/v1/responses/{response_id}/cancel", Endpoint(cancel_response), methods=["POST"]),
            Route("/v1/responses/{response_id}/input_items", Endpoint(list_input_items), methods=["GET"]),
            Route("/v1/models", Endpoint(list_models), methods=["GET"]),
            Route("/v1/models/{model:path}", Endpoint(retrieve_model), methods=["GET"]),
            Route("/v1/sessions", Endpoint(list_sessions), methods=["GET"]),
            *(
                Route(f"/v1/sessions/{{session:path}}/{action}", Endpoint(changing(action)), methods=["POST"])
                for action in SESSION_ACTIONS
            ),
            Route("/v1/sessions/{session:path}", Endpoint(retrieve_session), methods=["GET"]),
            Route("/v1/sessions/{session:path}", Endpoint(delete_session), methods=["DELETE"]),
            Route("/healthz", health),
            Route("/readyz", ready),
            Mount("/static", HashedFiles(directory=static_root, check_dir=False)),
        ],
        exception_handlers={HTTPException: _refuse},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirected POST loses its body: an unknown path is a 404
    return app


async def health(_request: Request) -> Response:
    """Say that the process lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Say whether a request could be served now."""
    web: Web = request.scope["state"]["web"]
    if web.drain.draining:
        return JSONResponse({"status": "stopping"}, 503)
    if not web.registry.num_connected:
        return JSONResponse({"status": "no engine worker is connected"}, 503)
    return JSONResponse({"status": "ok", "workers": web.registry.num_connected, "requests": web.drain.num_live})


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        refusal = not_allowed(request.method, path)
    elif error.status_code == 404:
        refusal = unknown(request.method, path)
    else:
        return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)
    headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return Response(refusal.json(), refusal.status, headers | dict(error.headers or {}), "application/json")
