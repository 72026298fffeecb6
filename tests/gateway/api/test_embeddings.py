"""`POST /v1/embeddings` through real processes."""

import base64
import json
import math
from array import array
from typing import Any

import openai
import pytest

from gateway.api import embeddings as module
from gateway.api.embeddings import unit
from gateway.api.errors import WorkerFailed
from tests.engine.tiny_model import make_tokenizer
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

PATH = "/v1/embeddings"
TEXTS = ["the tenant holds the block", "one two three", "Straße, 東京 🙂"]


def post(stack: Stack, raw: str, **body: Any) -> dict[str, Any]:
    """Return an answer."""
    with stack.http(raw) as client:
        response = client.post(PATH, json={"model": "tiny"} | body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def vectors(answer: dict[str, Any]) -> list[list[float]]:
    """Return the vectors of an answer in float format, in order."""
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    return [entry["embedding"] for entry in answer["data"]]


def close(one: list[float], two: list[float]) -> bool:
    """Whether two vectors are the same but for rounding, which depends on what they were computed beside."""
    return len(one) == len(two) and all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(one, two, strict=True))


def test_shape(stack: Stack, tenant: TenantInTest) -> None:
    """An answer is OpenAI's: a list of unit vectors in the order of the inputs, and the tokens that they cost."""
    answer = post(stack, tenant.key(), input=TEXTS)
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert {entry["object"] for entry in answer["data"]} == {"embedding"}
    found = vectors(answer)
    assert {len(vector) for vector in found} == {64}
    assert all(math.isclose(math.hypot(*vector), 1, abs_tol=1e-5) for vector in found)
    assert not close(found[0], found[1])
    count = sum(len(make_tokenizer().encode(text).ids) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_forms_of_input(stack: Stack, tenant: TenantInTest) -> None:
    """A text, its token ids, and either of them in a list give the same vector."""
    raw, tokens = tenant.key(), make_tokenizer().encode(TEXTS[0]).ids
    expected = vectors(post(stack, raw, input=TEXTS[0]))[0]
    for form in ([TEXTS[0]], tokens, [tokens]):
        assert close(vectors(post(stack, raw, input=form))[0], expected)
    several = vectors(post(stack, raw, input=[tokens, make_tokenizer().encode(TEXTS[1]).ids]))
    assert close(several[0], expected)
    assert close(several[1], vectors(post(stack, raw, input=TEXTS[1]))[0])


def test_sdk_and_base64(stack: Stack, tenant: TenantInTest) -> None:
    """OpenAI's SDK asks for base64 by itself; both formats hold the same float32 numbers."""
    raw = tenant.key()
    answer = stack.openai(raw).embeddings.create(model="tiny", input=TEXTS)
    asked = stack.openai(raw).embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    for one, two in zip(answer.data, asked.data, strict=True):
        assert close(one.embedding, two.embedding)
    assert answer.usage.prompt_tokens == asked.usage.prompt_tokens
    told = post(stack, raw, input=TEXTS[1], encoding_format="base64")["data"][0]["embedding"]
    numbers = array("f", base64.b64decode(told)).tolist()
    assert close(numbers, asked.data[1].embedding)


def test_dimensions(stack: Stack, tenant: TenantInTest) -> None:
    """Fewer numbers are the first ones, of unit length again; more than there are is refused."""
    raw = tenant.key()
    whole = vectors(post(stack, raw, input=TEXTS[0]))[0]
    cut = vectors(post(stack, raw, input=TEXTS[0], dimensions=8))[0]
    length = math.hypot(*whole[:8])
    assert close(cut, [number / length for number in whole[:8]])
    assert len(vectors(post(stack, raw, input=TEXTS[0], dimensions=64))[0]) == 64
    with pytest.raises(openai.BadRequestError, match="at most 64") as caught:
        stack.openai(raw).embeddings.create(model="tiny", input="x", dimensions=65)
    assert caught.value.param == "dimensions"


def test_more_inputs_than_are_on_their_way_at_once(stack: Stack, tenant: TenantInTest) -> None:
    """Many inputs come back in order, each metered once."""
    count = 2 * module.WINDOW + 3
    texts = [f"text number {number}" for number in range(count)]
    answer = post(stack, tenant.key(), input=texts)
    found = vectors(answer)
    assert len(found) == count
    alone = vectors(post(stack, tenant.key(), input=texts[-1]))[0]
    assert close(found[-1], alone)
    records = wait_for(lambda: len(tenant.usage()) == count + 1 and tenant.usage())
    assert {record["completion_tokens"] for record in records} == {0}
    assert {record["finish_reason"] for record in records} == {"stop"}
    last = len(make_tokenizer().encode(texts[-1]).ids)
    assert sum(record["prompt_tokens"] for record in records) == answer["usage"]["prompt_tokens"] + last


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [[2**40]]}, "input[0][0]"),
        ({"input": [100_000]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * (module.MAX_INPUTS + 1)}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 1.5}, "dimensions"),
        ({"input": "a", "user": 5}, "user"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "colour": "red"}, "colour"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_is_named(stack: Stack, tenant: TenantInTest, body: dict[str, Any], param: str) -> None:
    """A wrong field is a 400 that names it."""
    with stack.http(tenant.key()) as client:
        response = client.post(PATH, json={"model": "tiny"} | body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_too_long_an_input(stack: Stack, tenant: TenantInTest) -> None:
    """An input over the context is refused; one that fills it is not."""
    with stack.http(tenant.key()) as client:
        response = client.post(PATH, json={"model": "plain", "input": [[5] * 2048, [5] * 2049]})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert response.json()["error"]["param"] == "input"
        response = client.post(PATH, json={"model": "plain", "input": [[5] * 2048]})
        assert response.status_code == 200, response.text


def test_access_and_rates(stack: Stack) -> None:
    """A model that the key may not use doesn't exist; prompts count against the rate of tokens, and outputs don't."""
    with stack.http(stack.tenant().key(models=["plain"])) as client:
        assert client.post(PATH, json={"model": "tiny", "input": "x"}).json()["error"]["code"] == "model_not_found"
    with stack.http(stack.tenant(rpm=2, tpm=40).key()) as client:
        response = client.post(PATH, json={"model": "tiny", "input": [[5] * 10, [5] * 10]})
        assert response.status_code == 200
        assert response.headers["x-ratelimit-remaining-requests"] == "1"
        assert 20 <= int(response.headers["x-ratelimit-remaining-tokens"]) <= 21
        refused = client.post(PATH, json={"model": "tiny", "input": [[5] * 41]})
        assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")


def test_no_key(stack: Stack) -> None:
    """Nobody gets an embedding without a key."""
    with stack.http() as client:
        response = client.post(PATH, content=json.dumps({"model": "tiny", "input": "x"}))
    assert response.status_code == 401


def test_unit_vectors() -> None:
    """Numbers are scaled to length 1; without a direction there is nothing to scale."""
    assert unit((3.0, 4.0, 100.0), 2).tolist() == pytest.approx([0.6, 0.8])
    for broken in ((0.0, 0.0), (math.inf, 1.0), (math.nan, 1.0), ()):
        with pytest.raises(WorkerFailed):
            unit(broken, 2)
