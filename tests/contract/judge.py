"""What must hold for every answer of the product, whatever was asked."""

import json
from typing import Any

import httpx

from gateway.api.catalogue import codes_of, kinds

CODES = {code for kind in kinds() for code in codes_of(kind)}
SHOWN = 2000  # characters of what went wrong


def judge(response: httpx.Response) -> None:
    """Assert that an answer is no failure of the server's, and that a refusal says what is wrong in the one shape."""
    shown = f"{response.status_code} {response.text[:SHOWN]}"
    assert response.status_code < 500, shown
    assert response.headers.get("x-request-id", "").startswith("req_"), shown
    if response.status_code >= 400:
        judge_error(response.json(), is_management=response.request.url.path.startswith("/api/"))
    elif response.headers["content-type"].startswith("text/event-stream"):
        judge_stream(response.text)


def judge_error(body: Any, *, is_management: bool = False) -> None:
    """Assert that a body is an error's; of `/v1` its code is in the catalogue."""
    shown = json.dumps(body)[:SHOWN]
    assert isinstance(body, dict) and set(body) == {"error"}, shown
    error = body["error"]
    assert set(error) >= {"message", "type", "param", "code"}, shown
    assert isinstance(error["message"], str) and error["message"], shown
    assert isinstance(error["type"], str), shown
    assert error["param"] is None or isinstance(error["param"], str), shown
    assert is_management or error["code"] in CODES, shown


def judge_stream(text: str) -> None:
    """Assert that a stream is framed, comes to its end, and didn't fail."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    data = [line.removeprefix("data: ") for frame in frames for line in frame.split("\n") if line.startswith("data: ")]
    assert len(data) == len(frames), text[:SHOWN]
    if data[-1] == "[DONE]":
        data.pop()
    for item in data:
        error = json.loads(item).get("error")
        assert not error or error.get("type") != "server_error", item[:SHOWN]
