"""Calls from web pages of other origins."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gateway.config import ConfigError, GatewayConfig
from gateway.origins import SHOWN_HEADERS, shared

PAGE = "https://app.example.com"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer in two pieces."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"req_1")]})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b"})


def ask(origins: tuple[str, ...], method: str, headers: dict[str, str]) -> httpx.Response:
    """Send one request to an application shared with `origins`."""

    async def run() -> httpx.Response:
        transport: Any = httpx.ASGITransport(app=shared(app, origins))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, "/v1/chat/completions", headers=headers)

    return asyncio.run(run())


@pytest.mark.parametrize("origins", [(PAGE,), ("https://other.example.com", PAGE), ("*",)])
def test_page_that_may_call(origins: tuple[str, ...]) -> None:
    """Its browser gets leave for the SDK's headers, sees those of the answer, and is never told to send cookies."""
    leave = ask(origins, "OPTIONS", PREFLIGHT)
    assert leave.status_code == 200
    assert leave.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "authorization" in leave.headers["access-control-allow-headers"]
    assert {"GET", "POST", "DELETE"} <= set(leave.headers["access-control-allow-methods"].split(", "))
    answer = ask(origins, "POST", {"Origin": PAGE})
    assert answer.text == "ab"
    assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert set(answer.headers["access-control-expose-headers"].split(", ")) == set(SHOWN_HEADERS)
    for response in (leave, answer):
        assert "access-control-allow-credentials" not in response.headers


def test_page_that_may_not() -> None:
    """A page of another origin gets no leave, and cannot read the answer."""
    assert ask(("https://other.example.com",), "OPTIONS", PREFLIGHT).status_code == 400
    assert "access-control-allow-origin" not in ask(("https://other.example.com",), "POST", {"Origin": PAGE}).headers


def test_off_is_nothing_in_between() -> None:
    """Without origins the application is served as it is."""
    assert shared(app, GatewayConfig.from_env({}).cors_origins) is app


def test_setting() -> None:
    """Origins are separated by commas; what a browser never sends as one is refused."""
    read = GatewayConfig.from_env({"CORS_ORIGINS": f"{PAGE}, http://localhost:5173"})
    assert read.cors_origins == (PAGE, "http://localhost:5173")
    for wrong in ("app.example.com", f"{PAGE}/", f"{PAGE}/page"):
        with pytest.raises(ConfigError, match="CORS_ORIGINS"):
            GatewayConfig.from_env({"CORS_ORIGINS": wrong})
