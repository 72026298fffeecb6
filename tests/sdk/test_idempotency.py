"""Requests that are sent twice under one `Idempotency-Key` are carried out once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.sdk.place import Place

HELLO: list[Any] = [{"role": "user", "content": "hello world"}]


@pytest.fixture
def ask(client: OpenAI, place: Place) -> Any:
    """Return a function that asks at temperature 1, so that two answers would differ."""

    def answer(key: str = "", **options: Any) -> Any:
        headers = {"idempotency-key": key} if key else {}
        defaults: dict[str, Any] = {"model": place.model, "messages": HELLO, "max_tokens": 24, "temperature": 1}
        return client.chat.completions.create(
            **(defaults | options), extra_headers=headers, extra_body={"ignore_eos": True}
        )

    return answer


def test_the_second_gets_the_first_ones_answer(ask: Any, name: str) -> None:
    """The same id and the same text; without a key two requests are two."""
    first, second = ask(name), ask(name)
    assert first.id == second.id
    assert first.choices[0].message.content == second.choices[0].message.content
    assert ask().id != ask().id


def test_at_the_same_time(ask: Any, name: str) -> None:
    """Of two that run at once only one is carried out: the other gets its answer, or a conflict."""
    with ThreadPoolExecutor(2) as pool:
        tries = [pool.submit(ask, name) for _ in range(2)]
    answers = [one.result() for one in tries if one.exception() is None]
    conflicts = [one.exception() for one in tries if one.exception() is not None]
    assert answers
    assert len({one.id for one in answers}) == 1
    assert all(isinstance(one, openai.ConflictError) for one in conflicts)


def test_another_request_under_the_same_key(ask: Any, name: str) -> None:
    """A key that comes back with another body is refused, rather than answered with what wasn't asked."""
    ask(name)
    with pytest.raises(openai.APIStatusError) as caught:
        ask(name, max_tokens=25)
    assert 400 <= caught.value.status_code < 500


def test_other_tenants_keys_are_other_keys(ask: Any, dial: Any, place: Place, name: str) -> None:
    """Nobody gets another tenant's answer."""
    first = ask(name)
    other = dial(api_key=place.tenant().key()).chat.completions.create(
        model=place.model, messages=HELLO, max_tokens=2, extra_headers={"idempotency-key": name}
    )
    assert other.id != first.id
