"""A socket is one more way to the same code: the same refusals, the same answers, the same bill."""

import json
from typing import Any

import pytest

from tests.gateway.realtime.dialling import HELLO, create, dial, receive, send, until, until_done
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

CHAT = "/v1/chat/completions"
BASE = {"model": "tiny", "temperature": 0, "ignore_eos": True, "max_tokens": 8}


def over_http(stack: Stack, raw: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a chat request."""
    with stack.http(raw) as client:
        return dict(client.post(CHAT, json=body | {"messages": HELLO}).json()["error"])


def over_socket(stack: Stack, raw: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the error of the same request over a socket, under the names of chat."""
    with dial(stack, raw) as socket:
        send(socket, type="response.create", response=body | {"messages": HELLO})
        while (event := receive(socket))["type"] not in ("error", "response.done"):
            pass
    error = event["error"] if event["type"] == "error" else event["response"]["status_details"]["error"]
    error.pop("event_id", None)
    return dict(json.loads(json.dumps(error).replace("response.", "")))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "nothing"},
        {"model": "plain"},
        {"temperature": 3},
        {"top_p": 0},
        {"seed": 1.5},
        {"stop": ["x"] * 5},
        {"stop": [""]},
        {"max_tokens": 40_000},
        {"session_id": "a\nb"},
        {"session_ttl": 60},
        {"logit_bias": {"a": 1}},
        {"min_tokens": 9},
        {"service_tier": "priority"},
        {"service_tier": "gold"},
        {"metadata": {"a": 1}},
        {"user": 5},
        {"top_logprobs": 2},
        {"colour": 1},
    ],
    ids=str,
)
def test_same_refusals(stack: Stack, tenant: TenantInTest, changes: dict[str, Any]) -> None:
    """What HTTP refuses a socket refuses, in the same words and with the same code."""
    raw = tenant.key()
    assert over_socket(stack, raw, BASE | changes) == over_http(stack, raw, BASE | changes)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"models": ["plain"]}, {}),
        ({}, {"max_output": 4}),
        ({}, {"max_context": 10}),
        ({}, {"tpm": 5}),
    ],
    ids=str,
)
def test_same_rules_of_access(stack: Stack, options: dict[str, Any], policy: dict[str, Any]) -> None:
    """A key's models and a tenant's policy hold here as there."""
    raw = stack.tenant(**policy).key(**options)
    over = over_http(stack, raw, BASE)
    assert over_socket(stack, raw, BASE) == over
    assert over["code"]


def test_no_socket_without_the_scope(stack: Stack, tenant: TenantInTest) -> None:
    """A key that may not generate gets no socket, and is told why."""
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus) as caught, dial(stack, tenant.key(scopes=["models"])):
        pass
    assert caught.value.response.status_code == 403
    assert json.loads(caught.value.response.body)["error"]["code"] == "insufficient_scope"


def test_same_usage(stack: Stack, tenant: TenantInTest) -> None:
    """The ledger's record of a response is that of the same request over HTTP."""
    raw = tenant.key()
    with stack.http(raw) as client:
        assert client.post(CHAT, json=BASE | {"messages": HELLO}).status_code == 200
    with dial(stack, raw) as socket:
        send(socket, type="response.create", response=BASE | {"messages": HELLO})
        _, done = until_done(socket)
    records = wait_for(lambda: len(tenant.usage()) == 2 and tenant.usage())
    by_id = {record.pop("request_id"): record for record in records}
    first, second = by_id.values()
    assert first == second
    assert done["id"].replace("resp_", "req_") in by_id
    assert done["usage"]["input_tokens"] == first["prompt_tokens"]
    assert done["usage"]["output_tokens"] == first["completion_tokens"]


def test_rates_are_told(stack: Stack) -> None:
    """Once a response is admitted, and once it has ended: what its reservation leaves, then what its use leaves."""
    tenant = stack.tenant(rpm=3, tpm=3000)
    with dial(stack, tenant.key()) as socket:
        create(socket, **BASE, messages=HELLO)
        reserved = {rate["name"]: rate for rate in until(socket, "rate_limits.updated")["rate_limits"]}
        _, done = until_done(socket)
        settled = {rate["name"]: rate for rate in until(socket, "rate_limits.updated")["rate_limits"]}
    assert (reserved["requests"]["limit"], reserved["requests"]["remaining"]) == (3, 2)
    used = done["usage"]["total_tokens"]
    assert reserved["tokens"]["limit"] == 3000
    assert 3000 - used <= settled["tokens"]["remaining"] <= 3000
    assert 0 < settled["requests"]["reset_seconds"] <= 40


def test_refused_rate_is_told(stack: Stack) -> None:
    """A response that the rates refuse is failed, and what is left is told after it."""
    with dial(stack, stack.tenant(rpm=1).key()) as socket:
        for _ in range(2):
            send(socket, type="response.create", response=BASE | {"messages": HELLO})
            _, done = until_done(socket)
            left = until(socket, "rate_limits.updated")["rate_limits"]
    assert done["status_details"]["error"]["code"] == "rate_limit_exceeded"
    assert [(rate["name"], rate["remaining"]) for rate in left] == [("requests", 0)]


def test_limits_that_are_not_set_are_not_told(stack: Stack, tenant: TenantInTest) -> None:
    """Without rates the event comes all the same, and is empty."""
    with dial(stack, tenant.key()) as socket:
        create(socket, **BASE, messages=HELLO)
        assert until(socket, "rate_limits.updated")["rate_limits"] == []
