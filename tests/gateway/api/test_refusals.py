"""Every answer other than 2xx: status, OpenAI's error shape, the SDK's exception class."""

import contextlib
import json
import socket
import time
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants.keys import new_key, parse_key
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


@pytest.fixture
def key(tenant: TenantInTest) -> str:
    """A key of a tenant without limits."""
    return tenant.key()


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error of a response after checking the shape that every refusal has."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert response.headers["x-request-id"].startswith("req_")
    return dict(body["error"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 10**9),
        ("n", "2"),
        ("n", 1.5),
        ("logprobs", 3),
        ("top_logprobs", 3),
        ("top_logprobs", 21),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a b"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": "x" * (1 << 17)}}}),
        ("regex", ""),
        ("guided_choice", []),
        ("guided_json", "{"),
        ("structured_outputs", {}),
        ("structured_outputs", {"regex": "a", "grammar": "b"}),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("min_p", 1.5),
        ("min_tokens", -1),
        ("min_tokens", 2),
        ("top_k", -2),
        ("logit_bias", {"a": 2}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {str(number): 1 for number in range(1025)}),
        ("logit_bias", {"100000": 1}),
        ("stop_token_ids", [-1]),
        ("service_tier", "scale"),
        ("service_tier", "priority"),
        ("safety_identifier", "x" * 129),
        ("reasoning_effort", "high"),
        ("store", True),
        ("verbosity", "high"),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("prompt_cache_retention", "24h"),
        ("functions", [{"name": "f"}]),
        ("skip_special_tokens", False),
        ("bad_words", ["x"]),
        ("allowed_token_ids", [1] * 5000),
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", 10**30),
        ("max_completion_tokens", -1),
        ("seed", 2**64),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", ""),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("messages", []),
        ("model", 5),
        ("no_such_field", 1),
        ("metadata", {"a": 1}),
        ("metadata", {str(number): "" for number in range(17)}),
        ("metadata", {"k" * 65: ""}),
        ("metadata", {"k": "v" * 513}),
        ("session_id", "é" * 200),
        ("session_id", ""),
        ("session_id", "a\nb"),
        ("session_id", "a\u00a0b"),
        ("session_id", 5),
        ("prompt_cache_key", "x" * 257),
        ("prompt_cache_key", ""),
        ("session_ttl", 3600),
        ("session_ttl", "1h"),
    ],
)
def test_wrong_field_is_named(stack: Stack, key: str, field: str, value: object) -> None:
    """A field that is unknown, unsupported or out of range is a 400 whose `param` and message name it."""
    with stack.http(key) as client:
        response = client.post(CHAT, json={"model": "tiny", "messages": HELLO, "max_tokens": 1} | {field: value})
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"].startswith(field)
    assert field in error["message"]
    assert error["type"] == "invalid_request_error"


BEAMS = {"use_beam_search": True}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 129}, "n"),
        ({"n": -1}, "n"),
        ({"n": True}, "n"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
        ({"beam_width": 4}, "beam_width"),
        ({"beam_width": 4, "use_beam_search": False}, "beam_width"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        (BEAMS | {"beam_width": 1}, "beam_width"),
        (BEAMS | {"beam_width": 65}, "beam_width"),
        (BEAMS | {"beam_width": 10**12}, "beam_width"),
        (BEAMS | {"beam_width": 2, "n": 3}, "beam_width"),
        (BEAMS | {"n": 65}, "n"),
        (BEAMS | {"length_penalty": 10.5}, "length_penalty"),
        (BEAMS | {"length_penalty": -(10**40)}, "length_penalty"),
        (BEAMS | {"length_penalty": "NaN"}, "length_penalty"),
        (BEAMS | {"early_stopping": "never"}, "early_stopping"),
        (BEAMS | {"temperature": 0.5}, "temperature"),
        (BEAMS | {"top_p": 0.9}, "top_p"),
        (BEAMS | {"top_k": 5}, "top_k"),
        (BEAMS | {"seed": 0}, "seed"),
        (BEAMS | {"stop": "a"}, "stop"),
        (BEAMS | {"min_p": 0.5}, "min_p"),
        (BEAMS | {"frequency_penalty": 1}, "frequency_penalty"),
        (BEAMS | {"logit_bias": {"1": 1}}, "logit_bias"),
        (BEAMS | {"regex": "a"}, "regex"),
        (BEAMS | {"response_format": {"type": "json_object"}}, "response_format"),
        ({"regex": "a", "grammar": "b"}, "grammar"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_outputs_that_cannot_be_given_are_refused(
    stack: Stack, key: str, path: str, fields: dict[str, Any], param: str
) -> None:
    """A number of outputs or a search that can't be honoured is a 400 that names the field and what to do."""
    body = {"model": "tiny", "max_tokens": 1} | ({"messages": HELLO} if path == CHAT else {"prompt": "hello"})
    with stack.http(key) as client:
        response = client.post(path, json=body | fields)
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert f"`{param}`" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 0}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": "2"}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        (BEAMS | {"best_of": 4}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "logprobs": 1, "n": 2}, "n"),
        ({"max_tokens": 0, "echo": True, "logprobs": 1, "best_of": 2}, "best_of"),
        ({"max_tokens": 0, "echo": True, "logprobs": 1, "regex": "a"}, "regex"),
        ({"prompt": ["a"] * 9, "n": 120}, "prompt"),
        ({"prompt": ["a"] * 9, "best_of": 120}, "prompt"),
        ({"prompt": ["a"] * 20} | BEAMS | {"beam_width": 64}, "prompt"),
    ],
)
def test_best_of_that_cannot_be_given_is_refused(stack: Stack, key: str, fields: dict[str, Any], param: str) -> None:
    """`best_of` under `n`, streamed or with beams, and more outputs than one request may have, are a 400."""
    with stack.http(key) as client:
        response = client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 1} | fields)
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert f"`{param}`" in error["message"]


def test_best_of_is_no_field_of_chat(stack: Stack, key: str) -> None:
    """`best_of` exists on completions alone, as at OpenAI."""
    with stack.http(key) as client:
        response = client.post(CHAT, json={"model": "tiny", "messages": HELLO, "best_of": 1})
    assert (response.status_code, error_of(response)["code"]) == (400, "unknown_field")


def test_not_a_number_is_no_json(stack: Stack, key: str) -> None:
    """NaN as a penalty of length is a 400."""
    body = json.dumps({"model": "tiny", "messages": HELLO, "use_beam_search": True, "length_penalty": float("nan")})
    with stack.http(key) as client:
        response = client.post(CHAT, content=body.encode())
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[1].content[0].type",
        ),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
        ({"role": "tool", "tool_call_id": "c"}, "messages[1].content"),
        ({"role": "function", "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "messages[1].tool_call_id"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": "x", "colour": "red"}, "messages[1].colour"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, "messages[1].tool_calls[0].id"),
        ("hello", "messages[1]"),
    ],
)
def test_wrong_message_is_named(stack: Stack, key: str, message: object, param: str) -> None:
    """What is wrong inside a message is named with its path."""
    with stack.http(key) as client:
        response = client.post(CHAT, json={"model": "tiny", "messages": [*HELLO, message]})
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"model": NaN}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"model": "\xff\xfe"}',
        b'{"model": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"\x00" * 100,
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_what_is_no_json_object(stack: Stack, key: str, path: str, body: bytes) -> None:
    """Bytes that are no JSON object are a 400 with a reason."""
    with stack.http(key) as client:
        response = client.post(path, content=body)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


def test_large_body(stack: Stack, key: str) -> None:
    """A body over the limit is a 413, whether its length is declared or not."""
    large = b'{"model": "' + b"x" * (5 << 20) + b'"}'
    with stack.http(key) as client:
        declared = client.post(CHAT, content=large)
        chunked = client.post(CHAT, content=iter([large[: 3 << 20], large[3 << 20 :]]))
    assert [declared.status_code, chunked.status_code] == [413, 413]
    assert "4 MiB" in error_of(declared)["message"]


def test_too_many_messages(stack: Stack, key: str) -> None:
    """A conversation of too many messages is refused before the template walks it."""
    with stack.http(key) as client:
        response = client.post(CHAT, json={"model": "tiny", "messages": HELLO * 3000})
    assert response.status_code == 400
    assert error_of(response)["param"] == "messages"


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Basic abc", "Bearer nonsense", "Bearer sk-abc", "Bearer tg_live_" + "a" * 51, "\xff"],
)
def test_wrong_key(stack: Stack, authorization: str) -> None:
    """A missing, malformed or mistyped key is a 401 invalid_api_key on every path that needs one."""
    headers = [(b"authorization", authorization.encode("latin-1"))] if authorization else []
    with httpx.Client(base_url=stack.url, headers=headers, timeout=60) as client:
        for response in (client.post(CHAT, json={}), client.post("/v1/completions"), client.get("/v1/models")):
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"


def test_unknown_management_and_revoked_keys(stack: Stack, tenant: TenantInTest) -> None:
    """A well-formed key that nobody made, a management key and a revoked key raise AuthenticationError."""
    revoked = tenant.key()
    stack.openai(revoked).models.list()
    parsed = parse_key(revoked)
    assert parsed is not None
    stack.seed(do="revoke", tenant_id=tenant.id, key_id=parsed.key_id)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            stack.openai(revoked).models.list()
        except openai.AuthenticationError:
            break
    for raw in (new_key("live"), new_key("op"), new_key("adm"), revoked):
        with pytest.raises(openai.AuthenticationError) as caught:
            stack.openai(raw).models.list()
        assert caught.value.code == "invalid_api_key"


def test_key_made_after_it_was_tried(stack: Stack, tenant: TenantInTest) -> None:
    """That a key was unknown a moment ago is forgotten when keys change."""
    with pytest.raises(openai.AuthenticationError):
        stack.openai(new_key("live")).models.list()
    assert stack.openai(tenant.key()).models.list().data


def served_and_soon_expired(stack: Stack, tenant: TenantInTest) -> str:
    """Return a key that has been good for a request, and will soon be no more."""
    for seconds in (1.5, 5, 20):  # a slow machine takes a while to make a key and to use it
        expiring = tenant.key(expires_at=time.time() + seconds)
        with contextlib.suppress(openai.AuthenticationError):
            assert stack.openai(expiring).models.list().data
            return expiring
    raise AssertionError("no key was good for a single request")


def test_key_restrictions(stack: Stack, tenant: TenantInTest) -> None:
    """Expiry is a 401; a foreign address or a missing scope is a 403."""
    expiring = served_and_soon_expired(stack, tenant)
    with pytest.raises(openai.PermissionDeniedError) as address:
        stack.openai(tenant.key(ip_ranges=["10.0.0.0/8"])).models.list()
    assert address.value.code == "ip_not_authorized"
    assert stack.openai(tenant.key(ip_ranges=["127.0.0.0/8"])).models.list().data
    with pytest.raises(openai.PermissionDeniedError) as scope:
        stack.openai(tenant.key(scopes=["models"])).chat.completions.create(model="tiny", messages=HELLO)
    assert scope.value.code == "insufficient_scope"

    def refused() -> bool:
        try:
            stack.openai(expiring).models.list()
        except openai.AuthenticationError:
            return True
        return False

    wait_for(refused)


def test_unknown_path_and_method(stack: Stack, key: str) -> None:
    """Unknown paths below /v1 are 404 and wrong methods 405, in the same shape."""
    with stack.http(key) as client:
        for path in ("/v1", "/v1/", "/v1/nothing", "/v1/chat/completions/", "/v1/images"):
            response = client.get(path)
            assert response.status_code == 404
            assert error_of(response)["type"] == "invalid_request_error"
        response = client.get(CHAT)
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"
        assert error_of(response)["code"] == "method_not_allowed"


def test_policy_limits_are_named(stack: Stack) -> None:
    """A request over the tenant's own context limit, or one that can never fit its memory, is a 400 that says so."""
    small = stack.tenant(max_context=64)
    long = [{"role": "user", "content": "hello world " * 30}]
    with pytest.raises(openai.BadRequestError) as context:
        stack.openai(small.key()).chat.completions.create(model="tiny", messages=long, max_tokens=4)
    assert context.value.code == "context_length_exceeded"
    tight = stack.tenant(kv_hard_bytes=16384)
    with pytest.raises(openai.BadRequestError) as memory:
        stack.openai(tight.key()).chat.completions.create(model="tiny", messages=long, max_tokens=500)
    assert memory.value.code == "kv_limit_exceeded"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_output_above_the_policy_is_refused(stack: Stack, field: str) -> None:
    """More output than the policy allows is a 400 that names the field and the limit, and is not cut in silence."""
    client = stack.openai(stack.tenant(max_output=8).key())
    with pytest.raises(openai.BadRequestError, match="at most 8") as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, **{field: 9})
    assert (caught.value.param, caught.value.code) == (field, "max_output_exceeded")
    answer = client.chat.completions.create(model="tiny", messages=HELLO, **{field: 8}, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 8


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_output_without_a_number_is_what_the_policy_allows(stack: Stack, path: str) -> None:
    """A client that names no number gets as much as is allowed and `length`, also where that is under the default."""
    body = {"model": "tiny", "messages": HELLO} if path == CHAT else {"model": "tiny", "prompt": "hello"}
    with stack.http(stack.tenant(max_output=8).key()) as client:
        answer = client.post(path, json=body | {"ignore_eos": True}).json()
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["finish_reason"] == "length"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
SHARED = ["model", "messages", "prompt", "stop", "stream", "stream_options", "temperature", "top_p", "top_k", "seed"]
SEVERAL = ["n", "best_of", "use_beam_search", "beam_width", "length_penalty", "early_stopping"]
FIELDS = st.sampled_from([*SHARED, *SEVERAL, "max_tokens", "max_completion_tokens", "tools", "metadata", "user"])


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(path=st.sampled_from([CHAT, "/v1/completions"]), changes=st.dictionaries(FIELDS, JSON, max_size=3))
def test_no_body_gives_a_5xx(stack: Stack, key: str, path: str, changes: dict[str, Any]) -> None:
    """Whatever is in a body, the answer is the output or a 4xx in the error's shape."""
    base: dict[str, Any] = {"model": "tiny", "max_tokens": 1}
    base |= {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    with stack.http(key) as client:
        response = client.post(path, content=json.dumps(base | changes).encode("utf-8", "replace"))
    assert response.status_code < 500
    if response.status_code != 200:
        error_of(response)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200))
def test_no_bytes_give_a_5xx(stack: Stack, key: str, body: bytes) -> None:
    """Random bytes are a 400."""
    with stack.http(key) as client:
        response = client.post(CHAT, content=body)
    assert response.status_code == 400
    error_of(response)


def test_client_that_leaves_within_its_body(stack: Stack, key: str) -> None:
    """A client that cuts its connection in the middle of its body costs nothing."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 1000\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", stack.port)) as connection:
            connection.sendall(head.encode() + b'{"model": "ti')
    assert stack.openai(key).models.list().data
