"""`/v1/completions`: texts and token ids, one or many."""

import openai
import pytest

from tests.gateway.wire.stack import Stack, TenantInTest

LONG = {"ignore_eos": True}


def test_text_and_its_token_ids_give_the_same(stack: Stack, tenant: TenantInTest) -> None:
    """A prompt as a text and as its token ids continues alike."""
    from tests.engine.tiny_model import make_tokenizer

    ids = make_tokenizer().encode("the tenant holds").ids
    client = stack.openai(tenant.key())
    answers = [
        client.completions.create(model="tiny", prompt=prompt, max_tokens=10, temperature=0, extra_body=LONG)
        for prompt in ("the tenant holds", ids, [ids])
    ]
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert answers[0].usage.prompt_tokens == len(ids)


def test_default_is_sixteen_tokens(stack: Stack, tenant: TenantInTest) -> None:
    """Without max_tokens this surface generates 16."""
    answer = stack.openai(tenant.key()).completions.create(model="plain", prompt="hello", extra_body=LONG)
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_batch_of_prompts(stack: Stack, tenant: TenantInTest, stream: bool) -> None:
    """Several prompts give one choice each, under its index, with the text that each has alone."""
    client = stack.openai(tenant.key())
    prompts = ["the tenant", "a memory that", "one two three"]
    common = {"model": "tiny", "max_tokens": 8, "temperature": 0, "extra_body": LONG}
    alone = [client.completions.create(prompt=prompt, **common).choices[0].text for prompt in prompts]
    texts = [""] * 3
    if stream:
        for chunk in client.completions.create(prompt=prompts, stream=True, **common):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        answer = client.completions.create(prompt=prompts, **common)
        texts = [choice.text for choice in answer.choices]
        assert answer.usage.completion_tokens == 24
    assert texts == alone


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": []},
        {"prompt": ["a", 1]},
        {"prompt": [1, [2]]},
        {"prompt": [100_000]},
        {"prompt": [-1]},
        {"prompt": ""},
        {"prompt": [[]]},
        {"prompt": ["a"] * 200},
        {"prompt": "a", "echo": 1},
        {"prompt": "a", "logprobs": 21},
        {"prompt": "a", "logprobs": True},
        {"prompt": "a", "suffix": "b"},
    ],
)
def test_wrong_prompt_is_named(stack: Stack, tenant: TenantInTest, body: dict[str, object]) -> None:
    """A prompt of no known form, or an option that isn't served, is a 400 that names the field."""
    with pytest.raises(openai.BadRequestError) as caught:
        stack.openai(tenant.key()).completions.create(model="tiny", max_tokens=1, extra_body=body, prompt="overridden")
    assert str(caught.value.param).startswith(list(body)[-1])
