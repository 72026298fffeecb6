"""Heads of requests that nobody should send: any bytes in names and values, and any value where the gateway looks."""

import contextlib
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.bodies import HELLO
from tests.contract.judge import judge

LOOKED_AT = (
    "authorization",
    "content-type",
    "content-encoding",
    "accept",
    "accept-encoding",
    "idempotency-key",
    "x-request-id",
    "x-forwarded-for",
    "openai-organization",
    "openai-beta",
    "cookie",
    "origin",
    "host",
    "if-match",
    "expect",
    "upgrade",
    "range",
    "x-stainless-retry-count",
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=60)
RELAXED = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@RELAXED
@given(name=st.sampled_from(LOOKED_AT), value=VALUES)
def test_any_value(http: httpx.Client, target: Any, name: str, value: str) -> None:
    """Whatever a header says, the answer is the output or a refusal in the error's shape."""
    body = {"model": target.model, "messages": HELLO, "max_tokens": 1}
    headers = {name: value.strip().encode("latin-1")}
    response = http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code < 500, (name, value, response.text)
    if response.status_code != 400 or response.headers["content-type"].startswith("application/json"):
        judge(response)


@RELAXED
@given(lines=st.lists(st.binary(max_size=80), max_size=6), start=st.binary(max_size=40) | st.just(b"POST /v1/models"))
def test_any_bytes(http: httpx.Client, target: Any, lines: list[bytes], start: bytes) -> None:
    """Any bytes for a head are answered with a 4xx, or by closing; the server goes on."""
    said = said_to(target.base_url, start + b" HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n")
    status = said[9:12]
    assert not said or (said.startswith(b"HTTP/1.1 ") and b"100" <= status < b"500"), said[:300]
    assert http.get("/healthz").status_code == 200


@RELAXED
@given(path=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60), query=VALUES)
def test_any_path(http: httpx.Client, path: str, query: str) -> None:
    """Whatever path and query: an answer of the API, or the error's shape."""
    url = f"/v1/{path}".replace("?", "%3F").replace("#", "%23")
    with contextlib.suppress(httpx.InvalidURL):
        judge(http.get(url, params={"limit": query, "after": query} if "sessions" in path else None))


@pytest.mark.parametrize("path", ["/v1/models/a%0Ab", "/v1/sessions/%0A", "/api/v1/tenants/a%0Ab/", "/api/%0A"])
def test_a_line_break_in_a_path(http: httpx.Client, path: str) -> None:
    """It is refused like any other, in JSON."""
    response = http.get(path)
    judge(response)
    assert 400 <= response.status_code < 500


def said_to(base_url: str, data: bytes) -> bytes:
    """Send bytes, say that no more come, and return what the server says until it closes or waits for more."""
    place = urlsplit(base_url)
    assert place.hostname is not None and place.port is not None
    with socket.create_connection((place.hostname, place.port), timeout=60) as dialled:
        said = b""
        with contextlib.suppress(ConnectionError):
            dialled.sendall(data)
            dialled.shutdown(socket.SHUT_WR)
            while piece := dialled.recv(1 << 16):
                said += piece
    return said
