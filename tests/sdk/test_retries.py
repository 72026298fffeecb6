"""What the OpenAI Python SDK does by itself with the gateway's refusals: it waits as it is told and tries again."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from asgiref.sync import async_to_sync
from openai import OpenAI

from tests.sdk.conftest import Dial, dialled
from tests.sdk.faulty import Faulty
from tests.sdk.place import Place

HELLO: list[Any] = [{"role": "user", "content": "hello world"}]


def ask(client: OpenAI, place: Place, **options: Any) -> Any:
    """Ask for two tokens."""
    defaults: dict[str, Any] = {"model": place.model, "messages": HELLO, "max_tokens": 2}
    return client.chat.completions.create(**(defaults | options))


@pytest.mark.parametrize("fault", ["overloaded", "limited", "failed", "cut"])
def test_it_tries_again(dial: Dial, place: Place, proxy: Faulty, name: str, fault: str) -> None:
    """Two failures of this kind, then the answer; the server sees the count of tries."""
    client = dial(base_url=proxy.base_url(fault, 2, name), max_retries=2)
    assert ask(client, place).usage.completion_tokens > 0
    counts = [request["x-stainless-retry-count"] for request in proxy.seen[name].requests]
    assert counts == ["0", "1", "2"]


def test_it_gives_up(dial: Dial, place: Place, proxy: Faulty, name: str) -> None:
    """After `max_retries` the last error is raised."""
    client = dial(base_url=proxy.base_url("overloaded", 9, name), max_retries=2)
    with pytest.raises(openai.InternalServerError):
        ask(client, place)
    assert len(proxy.seen[name].requests) == 3


def test_not_at_all_if_told_so(dial: Dial, place: Place, proxy: Faulty, name: str) -> None:
    """`max_retries=0`: the first error is raised."""
    client = dial(base_url=proxy.base_url("limited", 9, name), max_retries=0)
    with pytest.raises(openai.RateLimitError):
        ask(client, place)
    assert len(proxy.seen[name].requests) == 1


def test_not_where_no_wait_helps(dial: Dial, place: Place, proxy: Faulty, name: str) -> None:
    """`x-should-retry: false` is obeyed."""
    client = dial(base_url=proxy.base_url("never", 9, name), max_retries=5)
    with pytest.raises(openai.RateLimitError):
        ask(client, place)
    assert len(proxy.seen[name].requests) == 1


def test_not_where_the_request_is_wrong(dial: Dial, place: Place, proxy: Faulty, name: str) -> None:
    """A 400 is raised at once."""
    client = dial(base_url=proxy.base_url("cut", 0, name), max_retries=5)
    with pytest.raises(openai.BadRequestError):
        ask(client, place, temperature=9)
    assert len(proxy.seen[name].requests) == 1


def test_for_one_request_alone(dial: Dial, place: Place, proxy: Faulty, name: str) -> None:
    """`with_options` sets it for one call."""
    client = dial(base_url=proxy.base_url("overloaded", 1, name), max_retries=0)
    assert ask(client.with_options(max_retries=1), place).choices


def test_a_stream_tries_again_until_it_begins(dial: Dial, place: Place, proxy: Faulty, name: str) -> None:
    """A stream that is refused is asked for again as a whole answer is."""
    client = dial(base_url=proxy.base_url("overloaded", 1, name), max_retries=1)
    chunks = list(ask(client, place, stream=True))
    assert chunks[-1].choices[0].finish_reason
    assert len(proxy.seen[name].requests) == 2


def test_async(place: Place, home_key: str, proxy: Faulty, name: str) -> None:
    """The asynchronous client does the same."""

    async def twice() -> Any:
        url = proxy.base_url("limited", 1, name)
        async with dialled(place, home_key, base_url=url, max_retries=1) as made:
            return await made.chat.completions.create(model=place.model, messages=HELLO, max_tokens=2)

    assert async_to_sync(twice)().choices
    assert len(proxy.seen[name].requests) == 2


def test_a_real_limit_is_waited_for(dial: Dial, place: Place) -> None:
    """The gateway's own 429 says how long, and after that wait the request is served."""
    client = dial(api_key=place.tenant(tpm=6000).key(), max_retries=0)
    costly: Any = {"n": 8, "max_tokens": 85, "extra_body": {"ignore_eos": True}}
    with ThreadPoolExecutor(16) as pool:  # all at once: more than the limit, however slowly each is served
        errors = [one.exception() for one in [pool.submit(ask, client, place, **costly) for _ in range(16)]]
    refused = [error for error in errors if error is not None]
    assert refused
    for error in refused:
        assert isinstance(error, openai.RateLimitError)
        assert 0 < int(error.response.headers["retry-after-ms"]) < 60_000
    assert len(ask(client.with_options(max_retries=4), place, **costly).choices) == 8
