"""Which web pages may call the API from a browser."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

SHOWN_HEADERS = (  # to pages of other origins; a browser shows them few by itself
    "x-request-id",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)


def shared(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Let pages of these origins call the API from a browser; of none: the application as it is.

    Keys come in `Authorization`, which the page sets itself: no cookie ever counts, so none is allowed.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=SHOWN_HEADERS,
    )
