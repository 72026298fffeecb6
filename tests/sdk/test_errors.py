"""Each error reaches the OpenAI Python SDK as its typed exception, with status, code, field and request id."""

import gzip
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.product import free_port
from tests.sdk.conftest import Dial
from tests.sdk.faulty import Faulty
from tests.sdk.place import Place

HELLO: list[Any] = [{"role": "user", "content": "hello world"}]


def ask(client: OpenAI, place: Place, **options: Any) -> Any:
    """Ask for two tokens."""
    defaults: dict[str, Any] = {"model": place.model, "messages": HELLO, "max_tokens": 2}
    return client.chat.completions.create(**(defaults | options))


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"stop": ["a"] * 20}, "stop"),
        ({"logit_bias": {"70": 1000}}, "logit_bias"),
        ({"top_logprobs": 50, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"presence_penalty": 9}, "presence_penalty"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"service_tier": "golden"}, "service_tier"),
        ({"extra_body": {"colour": "red"}}, "colour"),
        ({"extra_body": {"messages": [{"role": "user", "content": "x", "colour": 1}]}}, "messages[0].colour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_is_wrong_is_named(client: OpenAI, place: Place, options: dict[str, Any], param: str) -> None:
    """400: BadRequestError, whose `param` is the field as the client wrote it."""
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, place, **options)
    assert caught.value.param is not None and caught.value.param.startswith(param)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id is not None and caught.value.request_id.startswith("req_")


def test_context_length(client: OpenAI, place: Place) -> None:
    """A prompt that can't fit has OpenAI's code."""
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, place, messages=[{"role": "user", "content": "hello " * 20_000}])
    assert caught.value.code == "context_length_exceeded"


def test_output_above_the_policy(dial: Dial, place: Place) -> None:
    """More output than the tenant may have is refused, not cut."""
    with pytest.raises(openai.BadRequestError) as caught:
        ask(dial(api_key=place.tenant(max_output=4).key()), place, max_tokens=5)
    assert (caught.value.code, caught.value.param) == ("max_output_exceeded", "max_tokens")


@pytest.mark.parametrize("key", ["nonsense", "tg_live_0000000000000000_0000", "Bearer x"])
def test_a_wrong_key(dial: Dial, place: Place, key: str) -> None:
    """401: AuthenticationError, whatever is wrong with the key."""
    with pytest.raises(openai.AuthenticationError) as caught:
        ask(dial(api_key=key), place)
    assert caught.value.code == "invalid_api_key"


def test_a_management_key(dial: Dial, place: Place) -> None:
    """A management key can't generate."""
    with pytest.raises(openai.AuthenticationError, match="management key"):
        ask(dial(api_key=place.product.serve["operator"]["api_key"]), place)


def test_a_revoked_key(dial: Dial, place: Place) -> None:
    """A key that was revoked stops at once."""
    tenant = place.tenant()
    key = tenant.key()
    client = dial(api_key=key)
    ask(client, place)
    [made] = place.manage("GET", f"tenants/{tenant.slug}/keys/")["data"]
    place.manage("DELETE", f"tenants/{tenant.slug}/keys/{made['id']}/")

    def refused() -> bool:
        try:
            ask(client, place)
        except openai.AuthenticationError:
            return True
        return False

    from tests.product import wait_for

    wait_for(refused, 60, "the revocation to reach the web process")


def test_a_scope_that_is_missing(dial: Dial, place: Place) -> None:
    """403: PermissionDeniedError, with a code that says why."""
    client = dial(api_key=place.tenant().key(scopes=["models"]))
    assert client.models.list().data
    with pytest.raises(openai.PermissionDeniedError) as caught:
        ask(client, place)
    assert caught.value.code == "insufficient_scope"


def test_an_address_that_is_not_allowed(dial: Dial, place: Place) -> None:
    """A key for another network is of no use here."""
    with pytest.raises(openai.PermissionDeniedError) as caught:
        ask(dial(api_key=place.tenant().key(ip_ranges=["192.0.2.0/24"])), place)
    assert caught.value.code == "ip_not_authorized"


def test_a_model_that_is_not_there(client: OpenAI, place: Place) -> None:
    """404: NotFoundError with OpenAI's code."""
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, place, model="gpt-nothing")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_path_that_is_not_there(client: OpenAI) -> None:
    """What this gateway doesn't have is a 404 in the SDK's shape, not a page."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.list()
    assert caught.value.code == "not_found"


def test_a_method_that_is_not_allowed(client: OpenAI) -> None:
    """405 is an APIStatusError."""
    with pytest.raises(openai.APIStatusError) as caught:
        client.get("/chat/completions", cast_to=object)
    assert (caught.value.status_code, caught.value.code) == (405, "method_not_allowed")


def test_a_body_that_is_too_large(client: OpenAI, place: Place) -> None:
    """413 is an APIStatusError."""
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, place, messages=[{"role": "user", "content": "a" * (5 << 20)}])
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")


def test_a_compressed_body(place: Place, home_key: str) -> None:
    """415 names the encoding."""
    headers = {"authorization": f"Bearer {home_key}", "content-encoding": "gzip"}
    answer = httpx.post(f"{place.base_url}/chat/completions", content=gzip.compress(b"{}"), headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")


def test_rate_limit(dial: Dial, place: Place) -> None:
    """429: RateLimitError, with the time to wait and what is left."""
    client = dial(api_key=place.tenant(rpm=1).key())
    ask(client, place)
    with pytest.raises(openai.RateLimitError) as caught:
        ask(client, place)
    headers = caught.value.response.headers
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.type == "requests"
    assert 0 < int(headers["retry-after-ms"]) <= 60_000
    assert int(headers["retry-after"]) >= 1
    assert headers["x-ratelimit-remaining-requests"] == "0"


def test_a_prompt_above_its_rate(dial: Dial, place: Place) -> None:
    """What can never fit says so, and the SDK doesn't try again."""
    client = dial(api_key=place.tenant(tpm=3).key(), max_retries=5)
    with pytest.raises(openai.RateLimitError) as caught:
        ask(client, place)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


@pytest.mark.parametrize(("fault", "status"), [("overloaded", 503), ("failed", 502)])
def test_server_errors(dial: Dial, place: Place, proxy: Faulty, name: str, fault: str, status: int) -> None:
    """From 500 on: InternalServerError."""
    with pytest.raises(openai.InternalServerError) as caught:
        ask(dial(base_url=proxy.base_url(fault, 1, name)), place)
    assert caught.value.status_code == status
    assert caught.value.type == "server_error"


def test_nobody_there(dial: Dial, place: Place) -> None:
    """APIConnectionError where nothing listens."""
    with pytest.raises(openai.APIConnectionError):
        ask(dial(base_url=f"http://127.0.0.1:{free_port()}/v1"), place)


def test_timeout(dial: Dial, place: Place, proxy: Faulty, name: str) -> None:
    """APITimeoutError where the answer doesn't come in the client's time."""
    with pytest.raises(openai.APITimeoutError):
        ask(dial(base_url=proxy.base_url("silent", 1, name), timeout=0.3), place)


def test_an_error_in_an_async_client(place: Place, home_key: str) -> None:
    """The asynchronous client raises the same classes."""
    from asgiref.sync import async_to_sync

    from tests.sdk.conftest import dialled

    async def refused() -> None:
        async with dialled(place, home_key) as made:
            with pytest.raises(openai.BadRequestError):
                await made.chat.completions.create(model=place.model, messages=HELLO, temperature=9)

    async_to_sync(refused)()


def test_a_refusal_of_a_stream_is_a_status(client: OpenAI, place: Place) -> None:
    """What is refused before the first token isn't hidden in a stream."""
    with pytest.raises(openai.NotFoundError):
        ask(client, place, model="gpt-nothing", stream=True)
