"""Completions with the OpenAI Python SDK."""

from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Completion

from tests.sdk.place import Place

WHOLE = {"ignore_eos": True}


@pytest.fixture
def complete(client: OpenAI, place: Place) -> Any:
    """Return a function that has a prompt continued, by default by 12 tokens, greedily."""

    def ask(prompt: Any, **options: Any) -> Completion:
        defaults: dict[str, Any] = {"model": place.model, "max_tokens": 12, "temperature": 0, "extra_body": WHOLE}
        return client.completions.create(prompt=prompt, **(defaults | options))

    return ask


def test_a_text(complete: Any) -> None:
    """One prompt, one choice; usage adds up."""
    answer = complete("the tenant holds")
    assert (answer.object, len(answer.choices)) == ("text_completion", 1)
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_several_texts(complete: Any) -> None:
    """A choice a prompt, in their order, each as if it were alone."""
    prompts = ["one two", "hello world", "a memory that"]
    answer = complete(prompts)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.text for choice in answer.choices] == [complete(one).choices[0].text for one in prompts]


def test_token_ids(complete: Any) -> None:
    """A prompt may be token ids, or lists of them."""
    one = complete([60, 61, 62])
    assert one.usage.prompt_tokens == 3
    several = complete([[60, 61, 62], [70, 71]])
    assert several.usage.prompt_tokens == 5
    assert several.choices[0].text == one.choices[0].text


def test_default_length(complete: Any) -> None:
    """Without `max_tokens` it is OpenAI's 16."""
    assert complete("hello", max_tokens=None).usage.completion_tokens == 16


def test_n_of_several_prompts(complete: Any) -> None:
    """`n` choices a prompt, numbered prompt after prompt."""
    answer = complete(["one", "two"], n=2, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == 48


def test_best_of(complete: Any) -> None:
    """The best of several come back; all are counted."""
    answer = complete("hello", n=1, best_of=3, temperature=1)
    assert len(answer.choices) == 1
    assert answer.usage.completion_tokens == 36


def test_echo(complete: Any) -> None:
    """The prompt comes back before its continuation."""
    plain = complete("hello world").choices[0].text
    assert complete("hello world", echo=True).choices[0].text == "hello world" + plain


def test_logprobs(complete: Any) -> None:
    """Tokens, their log-probabilities, the likeliest ones and where each begins in the text."""
    answer = complete("hello", logprobs=3)
    told = answer.choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == 12
    assert all(value <= 0 for value in told.token_logprobs)
    assert all(0 < len(top) <= 4 for top in told.top_logprobs)
    assert told.text_offset == sorted(told.text_offset)


def test_echo_with_logprobs_scores_the_prompt(complete: Any) -> None:
    """The prompt's tokens are scored too, all but the first, which nothing precedes."""
    answer = complete("hello world", echo=True, logprobs=1)
    told = answer.choices[0].logprobs
    assert told.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in told.token_logprobs[1:])
    assert len(told.tokens) == answer.usage.prompt_tokens + 12


def test_stop(complete: Any) -> None:
    """A stop string ends the output and isn't part of it."""
    whole = complete("hello").choices[0].text
    stop = whole[4:6]
    answer = complete("hello", stop=[stop])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_stream(complete: Any) -> None:
    """Deltas join to the whole text, prompt by prompt."""
    prompts = ["one two", "hello world"]
    whole = complete(prompts)
    texts = ["", ""]
    for chunk in complete(prompts, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_usage_of_a_stream(complete: Any) -> None:
    """The last chunk has it, where it was asked for."""
    chunks = list(complete("hello", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12


def test_suffix_is_refused(complete: Any) -> None:
    """No model here fills in the middle: the field is refused by name, not ignored."""
    with pytest.raises(openai.BadRequestError) as caught:
        complete("hello", suffix="world")
    assert caught.value.param == "suffix"


def test_beam_search(complete: Any) -> None:
    """An extension: the likeliest continuations that a search finds, best first."""
    beams = {"use_beam_search": True, "beam_width": 3}
    answer = complete("hello", temperature=None, n=2, extra_body=beams)
    assert len({choice.text for choice in answer.choices}) == 2
