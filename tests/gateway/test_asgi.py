"""What goes where beside Django."""

import contextlib
import json

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.gateway.wire.stack import Process, Stack, wait_for


def test_health(stack: Stack) -> None:
    """Life and readiness are told without a key."""
    assert httpx.get(f"{stack.url}/healthz", timeout=60).json() == {"status": "ok"}
    ready = httpx.get(f"{stack.url}/readyz", timeout=60).json()
    assert ready["status"] == "ok"
    assert ready["workers"] == 2


def test_a_process_that_starts_beside_others_has_every_worker(stack: Stack) -> None:
    """It takes no request before: the first one is served as by any other process."""
    process, port = stack.start_web_unwaited()
    try:
        first = wait_for(lambda: answered(port, process), what="the first answer")
        assert (first.status_code, first.json()["workers"]) == (200, 2)
    finally:
        process.stop()


def answered(port: int, process: Process) -> httpx.Response | None:
    """Ask `/readyz`; None while nobody listens."""
    assert process.popen.poll() is None, process.log()
    with contextlib.suppress(httpx.ConnectError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60)
    return None


def test_every_response_has_a_request_id(stack: Stack) -> None:
    """Also pages of Django's, static files and refusals; no two are the same."""
    paths = ("/healthz", "/sign-in/", "/static/nothing.js", "/v1/models", "/api/v1/tenants/", "/nothing/")
    ids = [httpx.get(stack.url + path, timeout=60).headers["x-request-id"] for path in paths]
    assert len(set(ids)) == len(paths)
    assert all(name.startswith("req_") for name in ids)


def test_static_files(stack: Stack) -> None:
    """A missing file and a path that climbs out are 404; nothing is guessed."""
    assert httpx.get(f"{stack.url}/static/nothing.js", timeout=60).status_code == 404
    with httpx.Client(timeout=60) as client:
        request = client.build_request("GET", f"{stack.url}/static/x")
        request.url = request.url.copy_with(raw_path=b"/static/../manage.py")
        assert client.send(request).status_code == 404


def test_unknown_websocket_path(stack: Stack) -> None:
    """A websocket on a path that has none is refused before the handshake, in OpenAI's shape and with a request id."""
    with pytest.raises(InvalidStatus) as caught:
        connect(f"ws://127.0.0.1:{stack.port}/v1/nothing", proxy=None, open_timeout=60)
    response = caught.value.response
    assert response.status_code == 404
    assert "/v1/realtime" in json.loads(response.body)["error"]["message"]
    assert response.headers["x-request-id"].startswith("req_")


def test_log_lines_hold_no_texts(stack: Stack) -> None:
    """One line a request: ids and counts, neither key nor prompt."""
    tenant = stack.tenant()
    raw = tenant.key()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "sesame-open"}], "max_tokens": 3}
    with stack.http(raw) as client:
        request_id = client.post("/v1/chat/completions", json=body).headers["x-request-id"]
    written = wait_for(lambda: [line for line in stack.web.log().splitlines() if request_id in line])
    line, log = json.loads(written[0]), stack.web.log()
    assert line["tenant"] == tenant.slug
    assert line["status"] == 200
    assert line["completion_tokens"] <= 3
    assert "sesame-open" not in log
    assert raw not in log
