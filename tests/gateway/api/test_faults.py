"""What a client sees, and what stays behind, when something breaks."""

import json
import os
import random
import signal
import socket
import struct
from typing import Any

import httpx
import openai
import pytest
import redis

from tenants.keys import new_key
from tenants.reports import STATS_KEY
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

HELLO = [{"role": "user", "content": "hello"}]
LONG = {"model": "tiny", "messages": HELLO, "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
ENDLESS = LONG | {"max_tokens": 30_000}  # it is cut off long before its end


def events_of(text: str) -> list[Any]:
    """Return the decoded events of a stream that ended with [DONE]."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def stats(stack: Stack, worker: str) -> dict[str, Any]:
    """Return a worker's last statistics as the controller published them."""
    with redis.Redis.from_url(stack.env["REDIS_URL"]) as store:
        raw = store.get(STATS_KEY.format(worker_id=worker))
    return dict(json.loads(raw)) if isinstance(raw, bytes) else {}


def running(stack: Stack, tenant: TenantInTest) -> int:
    """Return how many requests of a tenant run on the tiny worker."""
    uses = stats(stack, "worker-tiny").get("tenants", [])
    return sum(int(use["running"]) for use in uses if use["tenant_id"] == tenant.id)


def test_core_killed_in_mid_stream(stack: Stack, tenant: TenantInTest) -> None:
    """The stream ends with an error event and [DONE], the next request works."""
    with stack.http(tenant.key()) as client:
        with client.stream("POST", "/v1/chat/completions", json=ENDLESS | {"stream": True}) as response:
            parts = []
            for part in response.iter_text():
                if not parts:
                    os.kill(stack.workers["tiny"].core_pid(), signal.SIGKILL)
                parts.append(part)
        events = events_of("".join(parts))
        assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
        assert events[-1]["error"]["code"] == "worker_failed"
        record = wait_for(tenant.usage)[0]
        assert record["request_id"] == response.headers["x-request-id"]
        assert 0 < record["completion_tokens"] < ENDLESS["max_tokens"]

        def answers() -> bool:
            body = {"model": "tiny", "messages": HELLO, "max_tokens": 2}
            status = client.post("/v1/chat/completions", json=body).status_code
            assert status in (200, 502, 503)
            return status == 200

        wait_for(answers, 90, "the core's restart")


def test_postgres_away(stack: Stack, tenant: TenantInTest) -> None:
    """Known keys go on, a running stream ends normally, an unknown key gets 503 with Retry-After, never 401."""
    raw, unknown = tenant.key(), tenant.key()
    with stack.http(raw) as client:
        assert client.get("/v1/models").status_code == 200
        with client.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as response:
            chunks = response.iter_text()
            first = next(chunks)
            with stack.without_postgres():
                events = events_of(first + "".join(chunks))
                assert events[-1]["choices"][0]["finish_reason"] == "length"
                for _ in range(3):
                    body = {"model": "tiny", "messages": HELLO, "max_tokens": 2}
                    assert client.post("/v1/chat/completions", json=body).status_code == 200
                refused = httpx.get(
                    f"{stack.url}/v1/models", headers={"authorization": f"Bearer {unknown}"}, timeout=60
                )
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "server_is_overloaded"
                assert int(refused.headers["retry-after"]) >= 1
                assert httpx.get(f"{stack.url}/readyz", timeout=60).status_code == 200
        wait_for(lambda: len(tenant.usage()) == 4, 90, "usage of the time without Postgres")

        def known_again() -> bool:
            response = httpx.get(f"{stack.url}/v1/models", headers={"authorization": f"Bearer {unknown}"}, timeout=60)
            assert response.status_code in (200, 503)
            return response.status_code == 200

        wait_for(known_again)
        with pytest.raises(openai.AuthenticationError):
            stack.openai(new_key("live")).models.list()


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_cancels(stack: Stack, tenant: TenantInTest, stream: bool) -> None:
    """The worker stops generating when the client goes, streamed or not, and the ledger has what was generated."""
    connection = connect(stack, tenant.key(), ENDLESS | {"stream": stream})
    wait_for(lambda: running(stack, tenant), 90, "the request to run")
    abort(connection)
    record = wait_for(tenant.usage)[0]
    assert record["completion_tokens"] < ENDLESS["max_tokens"]
    assert record["finish_reason"] == "cancelled"


def test_two_hundred_abrupt_disconnects(stack: Stack, tenant: TenantInTest) -> None:
    """Clients that reset their connection at any moment leave no request, no block and no slot behind."""
    raw = tenant.key()
    stack.openai(raw).models.list()
    choose = random.Random(5)
    for _ in range(20):
        connections = []
        for _ in range(10):
            prompt = [{"role": "user", "content": "hello " * choose.randint(1, 150)}]
            body = LONG | {"messages": prompt, "stream": choose.random() < 0.7, "max_tokens": choose.randint(1, 400)}
            connections.append(connect(stack, raw, body, cut=choose.random() < 0.15))
        for connection in choose.sample(connections, len(connections)):
            connection.settimeout(choose.choice([0.0005, 0.005, 0.03]))
            read_a_little(connection)
            abort(connection)
    wait_for(
        lambda: httpx.get(f"{stack.url}/readyz", timeout=60).json()["requests"] == 0,
        90,
        "the end of all requests in web",
    )

    def nothing_left() -> bool:
        now = stats(stack, "worker-tiny")
        mine = [use for use in now.get("tenants", []) if use["tenant_id"] == tenant.id]
        idle = now["running"] == now["queued"] == 0
        unused = now["blocks_free"] + now["blocks_cached"] == now["blocks_total"]
        return bool(idle and unused and all(use["kv_bytes"] == use["kv_cached_bytes"] for use in mine))

    wait_for(nothing_left, 90, "free blocks", lambda: str(stats(stack, "worker-tiny")))
    assert stack.openai(raw).chat.completions.create(model="tiny", messages=HELLO, max_tokens=2).choices


def connect(stack: Stack, raw: str, body: dict[str, Any], *, cut: bool = False) -> socket.socket:
    """Send a request over a plain socket; `cut`: only a part of its body."""
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {raw}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", stack.port))
    connection.sendall(head.encode() + (data[: len(data) // 2] if cut else data))
    return connection


def read_a_little(connection: socket.socket) -> None:
    """Read what comes before the socket's timeout."""
    try:
        connection.recv(4096)
    except TimeoutError:
        return


def abort(connection: socket.socket) -> None:
    """Reset the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
