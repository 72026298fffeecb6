"""Response headers of the pages: a content policy that runs nothing but our own files."""

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

# Scripts, styles and fonts come from /static/ alone, inline ones are refused. `connect-src 'self'` includes websockets.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
API_PREFIX = "/api/"  # the browsable docs bring scripts of their own; what else is there is JSON

Answer = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def security_headers(get_response: Answer) -> Answer:
    """Add the content policy, and keep pages of signed-in readers out of shared caches."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return _with_headers(request, await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        assert isinstance(response, HttpResponseBase)
        return _with_headers(request, response)

    return answer


def _with_headers(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if not request.path.startswith(API_PREFIX):
        response.headers.setdefault("Content-Security-Policy", CONTENT_POLICY)
        response.headers.setdefault("Cache-Control", "private, no-store")
    return response
