"""Embeddings with the OpenAI Python SDK."""

import math
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.sdk.place import Place, SdkTenant


@pytest.fixture
def embed(client: OpenAI, place: Place) -> Any:
    """Return a function that embeds."""

    def ask(entry: Any, **options: Any) -> Any:
        return client.embeddings.create(**({"model": place.model, "input": entry} | options))

    return ask


def test_a_text(embed: Any, place: Place) -> None:
    """One vector of length 1; the SDK asks for base64 by itself and gives floats."""
    answer = embed("hello world")
    assert (answer.object, answer.model, len(answer.data)) == ("list", place.model, 1)
    vector = answer.data[0].embedding
    assert all(isinstance(value, float) for value in vector)
    assert math.sqrt(sum(value * value for value in vector)) == pytest.approx(1, abs=1e-3)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def test_formats_say_the_same(embed: Any) -> None:
    """Floats and base64 are one vector."""
    floats = embed("hello world", encoding_format="float").data[0].embedding
    assert embed("hello world").data[0].embedding == pytest.approx(floats, abs=1e-5)


def test_several(embed: Any) -> None:
    """One vector a text, in their order; the same text has the same vector."""
    answer = embed(["one", "two", "one"])
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    first, second, third = (entry.embedding for entry in answer.data)
    assert first == pytest.approx(third, abs=1e-4)
    assert first != pytest.approx(second, abs=1e-4)


def test_token_ids(embed: Any) -> None:
    """Token ids, or lists of them, are taken as they are."""
    one = embed([60, 61, 62])
    assert one.usage.prompt_tokens == 3
    several = embed([[60, 61, 62], [70]])
    assert several.usage.prompt_tokens == 4
    assert several.data[0].embedding == pytest.approx(one.data[0].embedding, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "param"),
    [({"input": []}, "input"), ({"input": ""}, "input"), ({"encoding_format": "hex"}, "encoding_format")],
    ids=["no entry", "empty", "format"],
)
def test_what_is_refused(client: OpenAI, place: Place, options: dict[str, Any], param: str) -> None:
    """A field that is wrong is named."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=place.model, input="x", extra_body=options)
    assert (caught.value.param or "").startswith(param)


def test_unknown_model(embed: Any) -> None:
    """A model that doesn't exist is a NotFoundError here too."""
    with pytest.raises(openai.NotFoundError):
        embed("hello", model="nothing")


def test_usage_is_metered(client: OpenAI, place: Place, home: SdkTenant) -> None:
    """The ledger has the prompt's tokens and no output."""
    raw = client.embeddings.with_raw_response.create(model=place.model, input="one two three")
    record = home.record(raw.headers["x-request-id"])
    assert record["prompt_tokens"] == raw.parse().usage.prompt_tokens
    assert record["completion_tokens"] == 0
