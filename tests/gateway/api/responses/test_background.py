"""Responses in the background: polled, streamed from anywhere, cancelled from anywhere, and lost with their process."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest
from openai import OpenAI

from tests.gateway.api.responses.test_create import ASK, create, refused
from tests.gateway.wire.stack import Process, Stack, TenantInTest, wait_for

LONG: dict[str, Any] = {"background": True, "max_output_tokens": 30_000, "ignore_eos": True}


@pytest.fixture
def second(stack: Stack, key: str) -> Iterator[tuple[Process, httpx.Client]]:
    """Start a second web process; return it and a client of it."""
    process, port = stack.start_web()
    try:
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            yield process, client
    finally:
        process.popen.kill()
        process.popen.wait()


def state(client: httpx.Client, response_id: str) -> dict[str, Any]:
    """Return a response as it is stored."""
    answer = client.get(f"/v1/responses/{response_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def has_text(client: httpx.Client, response_id: str) -> bool:
    """Say whether some of its text is stored."""
    return bool(state(client, response_id)["output"])


def ended(client: httpx.Client, response_id: str) -> dict[str, Any]:
    """Wait for the end of a response and return it."""

    def over() -> dict[str, Any] | None:
        found = state(client, response_id)
        return None if found["status"] in ("queued", "in_progress") else found

    return dict(wait_for(over, what="the end of the response"))


@contextmanager
def streaming(client: httpx.Client, response_id: str, **query: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """Stream a response that exists."""
    params = {"stream": "true", **query}
    with client.stream("GET", f"/v1/responses/{response_id}", params=params) as answer:
        assert answer.status_code == 200, answer.read()
        yield (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: "))


def test_a_background_is_polled(sdk: OpenAI) -> None:
    """It is queued at once, and there when it has ended, as the same request gives it that waits."""
    response = sdk.responses.create(**ASK, background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    done = wait_for(
        lambda: found if (found := sdk.responses.retrieve(response.id)).status == "incomplete" else None,
        what="the end of the response",
    )
    assert done.output_text == sdk.responses.create(**ASK).output_text
    assert done.usage.output_tokens == 8


def test_a_background_goes_on_without_its_client(client: httpx.Client, tenant: TenantInTest) -> None:
    """Its stream is left in the middle; it ends as if nobody had."""
    with client.stream("POST", "/v1/responses", json=ASK | {"background": True, "stream": True}) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
    assert ended(client, response_id)["usage"]["output_tokens"] == 8
    [record] = wait_for(tenant.usage, what="the usage record")
    assert record["finish_reason"] == "length"


def test_its_stream_is_told_again_from_anywhere(client: httpx.Client) -> None:
    """The same events as the first time, all of them or those after a number."""
    with client.stream("POST", "/v1/responses", json=ASK | {"background": True, "stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    told = [json.loads(line) for line in lines]
    assert [event["type"] for event in told[:3]] == ["response.created", "response.queued", "response.in_progress"]
    response_id = told[0]["response"]["id"]
    with streaming(client, response_id) as again:
        assert list(again) == told
    with streaming(client, response_id, starting_after=4) as again:
        assert list(again) == told[5:]
    with streaming(client, response_id, starting_after=10**6) as again:
        assert list(again) == []


def test_the_sdk_goes_on_where_it_was(sdk: OpenAI) -> None:
    """With the number of the last event that it has."""
    numbers = []
    with sdk.responses.create(**ASK, background=True, stream=True) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            response_id = getattr(getattr(event, "response", None), "id", None) or response_id  # noqa: F821
            if event.type == "response.output_text.delta":
                break
    with sdk.responses.retrieve(response_id, stream=True, starting_after=numbers[-1]) as stream:
        numbers += [event.sequence_number for event in stream]
    assert numbers == list(range(len(numbers)))


def test_another_process_streams_it_while_it_runs(
    client: httpx.Client, second: tuple[Process, httpx.Client], tenant: TenantInTest
) -> None:
    """What is stored comes along; a cancellation there ends it here, and both streams."""
    _, elsewhere = second
    response_id = create(client, **LONG)["id"]
    with streaming(client, response_id) as here, streaming(elsewhere, response_id) as there:
        for told in (here, there):
            assert any(event["type"] == "response.output_text.delta" for event in told)
        cancelled = elsewhere.post(f"/v1/responses/{response_id}/cancel").json()
        assert cancelled["status"] == "cancelled"
        for told in (here, there):
            *_, last = told
            assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    [record] = wait_for(tenant.usage, what="the usage record")
    assert record["finish_reason"] == "cancelled"
    assert state(client, response_id)["status"] == "cancelled"
    assert elsewhere.post(f"/v1/responses/{response_id}/cancel").json()["status"] == "cancelled"


def test_what_is_cancelled_keeps_its_text(sdk: OpenAI, client: httpx.Client) -> None:
    """So far as it was stored; nothing goes on from it."""
    response_id = create(client, **LONG)["id"]
    wait_for(lambda: has_text(client, response_id), what="some text")
    cancelled = sdk.responses.cancel(response_id)
    assert (cancelled.status, bool(cancelled.output_text)) == ("cancelled", True)
    assert refused(client, 400, previous_response_id=response_id)["param"] == "previous_response_id"


def test_what_is_deleted_stops(
    client: httpx.Client, second: tuple[Process, httpx.Client], tenant: TenantInTest
) -> None:
    """Wherever it was deleted."""
    _, elsewhere = second
    response_id = create(client, **LONG)["id"]
    assert elsewhere.delete(f"/v1/responses/{response_id}").status_code == 200
    [record] = wait_for(tenant.usage, what="the usage record")
    assert record["finish_reason"] == "cancelled"
    assert client.get(f"/v1/responses/{response_id}").status_code == 404


def test_a_process_that_dies_leaves_a_failed_response(
    stack: Stack, client: httpx.Client, second: tuple[Process, httpx.Client]
) -> None:
    """Once its lease is over, with what had been stored; until then nobody can know."""
    process, elsewhere = second
    response_id = create(elsewhere, **LONG)["id"]
    wait_for(lambda: has_text(client, response_id), what="some text")
    process.popen.send_signal(signal.SIGKILL)
    process.popen.wait()
    assert state(client, response_id)["status"] == "in_progress"
    with psycopg.connect(stack.env["DATABASE_URL"]) as database:
        database.execute("UPDATE tenants_storedresponse SET lease_until = now() WHERE id = %s", [response_id])
    lost = ended(client, response_id)
    assert (lost["status"], lost["error"]["code"], bool(lost["output"])) == ("failed", "server_error", True)
    with streaming(client, response_id) as told:
        *_, last = told
        assert (last["type"], last["response"]["error"]) == ("response.failed", lost["error"])


def test_a_process_that_stops_ends_what_it_generates(
    client: httpx.Client, second: tuple[Process, httpx.Client]
) -> None:
    """After its time to drain, and stores the end."""
    process, elsewhere = second
    response_id = create(elsewhere, **LONG)["id"]
    process.stop()
    lost = state(client, response_id)
    assert (lost["status"], lost["error"]["code"]) == ("failed", "server_error")


def test_a_worker_that_refuses_fails_it(stack: Stack) -> None:
    """What a client that waits gets as a status is the error of one that doesn't."""
    tenant = stack.tenant(max_context=64, max_output=64)
    with stack.http(tenant.key()) as client:
        response_id = create(client, input="x " * 200, background=True)["id"]
        failed = ended(client, response_id)
    assert (failed["status"], failed["error"]["code"], failed["output"]) == ("failed", "invalid_prompt", [])


def test_a_database_that_is_away_for_a_while_costs_no_response(stack: Stack, client: httpx.Client) -> None:
    """It goes on meanwhile, and its end is stored, and told, once there is somewhere to store it."""
    body = ASK | LONG | {"max_output_tokens": 400, "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        told = [json.loads(next(lines))]
        with stack.without_postgres():
            while sum(event["type"] == "response.output_text.delta" for event in told) < 5:
                told.append(json.loads(next(lines)))
        told += map(json.loads, lines)
    assert (told[-1]["type"], told[-1]["response"]["usage"]["output_tokens"]) == ("response.incomplete", 400)
    assert state(client, told[-1]["response"]["id"])["output"] == told[-1]["response"]["output"]
