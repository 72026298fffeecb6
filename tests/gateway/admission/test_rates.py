"""Rates as a client meets them, over two web processes."""

import openai
import pytest

from tests.gateway.wire.stack import Stack, wait_for

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": HELLO, "max_tokens": 2}


def test_no_limits_no_headers(stack: Stack) -> None:
    """Without limits there is nothing to tell."""
    with stack.http(stack.tenant().key()) as client:
        headers = client.post(CHAT, json=BODY).headers
    assert not [name for name in headers if name.startswith("x-ratelimit")]


def test_requests_per_minute(stack: Stack) -> None:
    """Answers count down; over the limit is a RateLimitError that says when to come back."""
    raw = stack.tenant(rpm=3).key()
    with stack.http(raw) as client:
        for left in ("2", "1", "0"):
            response = client.post(CHAT, json=BODY | {"stream": left == "1"})
            assert response.status_code == 200
            assert response.headers["x-ratelimit-limit-requests"] == "3"
            assert response.headers["x-ratelimit-remaining-requests"] == left
            assert response.headers["x-ratelimit-reset-requests"].endswith("s")
        refused = client.post(CHAT, json=BODY)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.json()["error"]["type"] == "requests"
    assert 15_000 < int(refused.headers["retry-after-ms"]) <= 20_000
    assert 15 < int(refused.headers["retry-after"]) <= 20
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError):
        stack.openai(raw).chat.completions.create(**BODY)


def test_limits_are_shared_by_processes(stack: Stack) -> None:
    """Two web processes together let through what the tenant's limit says, and the key's own limit is one more."""
    tenant = stack.tenant(rpm=6)
    wide, narrow = tenant.key(), tenant.key(rpm=2)
    process, port = stack.start_web()
    try:
        urls = (stack.url, f"http://127.0.0.1:{port}")
        narrow_codes = [post(stack, urls[number % 2], narrow) for number in range(4)]
        assert narrow_codes.count(200) == 2
        wide_codes = [post(stack, urls[number % 2], wide) for number in range(8)]
        assert wide_codes.count(200) == 4
        assert set(wide_codes + narrow_codes) == {200, 429}
    finally:
        process.stop()


def post(stack: Stack, url: str, raw: str) -> int:
    """Send one request and return its status."""
    with stack.http(raw) as client:
        return client.post(f"{url}{CHAT}", json=BODY).status_code


def test_tokens_per_minute_are_settled(stack: Stack) -> None:
    """A reservation that wasn't used comes back; what was used counts."""
    raw = stack.tenant(tpm=2000).key()
    with stack.http(raw) as client:
        first = client.post(CHAT, json=BODY | {"max_tokens": 1800, "stop": ["e", "a", "t", " "]})
        used = first.json()["usage"]["total_tokens"]
        assert used < 1000
        again = client.post(CHAT, json=BODY | {"max_tokens": 900})
        assert again.status_code == 200
        remaining = int(again.headers["x-ratelimit-remaining-tokens"])
        assert again.headers["x-ratelimit-limit-tokens"] == "2000"
        assert remaining <= 2000 - used


def test_prompt_over_the_limit_can_never_pass(stack: Stack) -> None:
    """A prompt longer than the limit of tokens is a 429 that tells clients not to retry."""
    with stack.http(stack.tenant(tpm=20).key()) as client:
        response = client.post(CHAT, json=BODY | {"messages": [{"role": "user", "content": "hello " * 50}]})
    assert response.status_code == 429
    assert response.headers["x-should-retry"] == "false"
    assert "retry-after" not in response.headers
    assert response.json()["error"]["type"] == "tokens"


def test_changed_limit_is_taken_up(stack: Stack) -> None:
    """A new limit holds for the next requests of a key that is already known."""
    tenant = stack.tenant()
    with stack.http(tenant.key()) as client:
        assert client.post(CHAT, json=BODY).status_code == 200
        tenant.policy(rpm=1)
        wait_for(lambda: "x-ratelimit-limit-requests" in client.post(CHAT, json=BODY).headers, 90, "the new limit")
        assert client.post(CHAT, json=BODY).status_code == 429
        tenant.policy(rpm=0)
        wait_for(lambda: client.post(CHAT, json=BODY).status_code == 200, 90, "no limit")


def test_refused_by_the_worker_gives_tokens_back(stack: Stack) -> None:
    """What a worker refuses uses no tokens."""
    tenant = stack.tenant(tpm=3000, max_context=64)
    with stack.http(tenant.key()) as client:
        for _ in range(3):
            response = client.post(CHAT, json=BODY | {"max_tokens": 1200})
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
