"""What is asked for in vain is answered with what to ask for."""

import httpx
import pytest

from gateway.api.unserved import UNSERVED
from tests.gateway.wire.stack import Stack


def error_of(response: httpx.Response) -> dict[str, object]:
    """Return the error in OpenAI's shape."""
    error: dict[str, object] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_socket_without_an_upgrade(stack: Stack, method: str) -> None:
    """A plain request where the websocket is says what it lacks."""
    response = httpx.request(method, f"{stack.url}/v1/realtime", timeout=60)
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")
    assert "websocket" in str(error_of(response)["message"])


@pytest.mark.parametrize("beginning", sorted(UNSERVED.keys() - {"realtime"}))
def test_endpoint_that_is_not_served_is_named(stack: Stack, beginning: str) -> None:
    """OpenAI's other endpoints are 404, by name."""
    for path in (f"/v1/{beginning}", f"/v1/{beginning}/x"):
        response = httpx.post(stack.url + path, json={}, timeout=60)
        assert response.status_code == 404
        assert UNSERVED[beginning] in str(error_of(response)["message"])


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/openai/deployments/x/chat/completions", "//v1/models", "/models"]
)
def test_path_without_the_prefix(stack: Stack, path: str) -> None:
    """A program that lacks `/v1` in its base_url is told the whole address, not shown a page."""
    key = {"Authorization": "Bearer tg_live_x"}
    for response in (
        httpx.post(stack.url + path, json={}, timeout=60),
        httpx.get(stack.url + path, headers=key, timeout=60),
    ):
        assert response.status_code == 404
        assert "/v1, so make that the base_url" in str(error_of(response)["message"])
        assert response.headers["x-request-id"]


def test_pages_and_the_management_api_are_left_alone(stack: Stack) -> None:
    """What the console and the management API serve, or refuse, is theirs."""
    key = {"Authorization": "Bearer tg_adm_x"}
    assert "base_url" not in httpx.get(f"{stack.url}/sign-in/", headers=key, timeout=60).text
    assert "base_url" not in httpx.post(f"{stack.url}/api/v1/nothing/", headers=key, json={}, timeout=60).text
    assert httpx.get(f"{stack.url}/nothing/", timeout=60).headers["content-type"].startswith("text/html")
