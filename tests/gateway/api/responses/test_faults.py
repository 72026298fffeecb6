"""What becomes of responses when something breaks, and what stays behind: nothing."""

import json
import os
import signal
from typing import Any

import httpx
import psycopg
import pytest

from tests.gateway.api.responses.test_background import LONG, ended, has_text, state, streaming
from tests.gateway.api.responses.test_create import ASK, create
from tests.gateway.wire.stack import Stack, wait_for


def kill_core(stack: Stack, client: httpx.Client) -> None:
    """Kill the worker's core, and wait until another one answers."""
    os.kill(stack.workers["tiny"].core_pid(), signal.SIGKILL)

    def answers() -> bool:
        return client.post("/v1/responses", json=ASK | {"store": False}).status_code == 200

    wait_for(answers, 90, "the core's restart")


def test_a_stream_whose_worker_dies_ends_as_failed(stack: Stack, client: httpx.Client) -> None:
    """With what there was; it is stored so, and the SDKs know the event."""
    body: dict[str, Any] = ASK | LONG | {"background": False, "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        events = [json.loads(next(lines)) for _ in range(5)]
        os.kill(stack.workers["tiny"].core_pid(), signal.SIGKILL)
        events += map(json.loads, lines)
    last = events[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert state(client, last["response"]["id"]) == last["response"]
    wait_for(lambda: client.post("/v1/responses", json=ASK).status_code == 200, 90, "the core's restart")


def test_a_background_whose_worker_dies_is_failed(stack: Stack, client: httpx.Client) -> None:
    """It says so, and a later one is served."""
    response_id = create(client, **LONG)["id"]
    wait_for(lambda: has_text(client, response_id), what="some text")
    kill_core(stack, client)
    failed = ended(client, response_id)
    assert (failed["status"], failed["error"]["code"], bool(failed["output"])) == ("failed", "server_error", True)


def test_nothing_stays_behind(stack: Stack, client: httpx.Client) -> None:
    """Of responses that end, are cancelled, deleted and left, the process holds nothing; each has its own end."""
    ids = [create(client, **LONG)["id"] for _ in range(6)]
    short = [create(client, background=True)["id"] for _ in range(6)]
    for response_id in ids[:3]:
        with streaming(client, response_id) as told:
            next(told)
    for response_id in ids[::2]:
        assert client.post(f"/v1/responses/{response_id}/cancel").json()["status"] == "cancelled"
    for response_id in ids[1::2]:
        client.delete(f"/v1/responses/{response_id}").raise_for_status()
    assert {ended(client, response_id)["status"] for response_id in short} <= {"completed", "incomplete"}
    assert {state(client, response_id)["status"] for response_id in ids[::2]} == {"cancelled"}
    assert [client.get(f"/v1/responses/{response_id}").status_code for response_id in ids[1::2]] == [404] * 3
    wait_for(lambda: client.get("/readyz").json()["requests"] == 0, what="the end of all requests")


@pytest.mark.parametrize("path", ["", "/input_items"])
def test_a_stored_response_that_is_damaged_is_not_there(stack: Stack, client: httpx.Client, path: str) -> None:
    """It can't be read any more: a 404, and never half of it."""
    response_id = create(client)["id"]
    with psycopg.connect(stack.env["DATABASE_URL"]) as database:
        database.execute(
            "UPDATE tenants_storedresponse SET sealed = set_byte(sealed, 60, 1 - sign(get_byte(sealed, 60))::int)"
            " WHERE id = %s",
            [response_id],
        )
    assert client.get(f"/v1/responses/{response_id}{path}").status_code == 404
    assert client.post("/v1/responses", json=ASK | {"previous_response_id": response_id}).status_code == 400
