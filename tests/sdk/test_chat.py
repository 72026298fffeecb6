"""Chat with the OpenAI Python SDK: what comes back, how it is shaped, and what each field does."""

import math
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from tests.sdk.place import Place, SdkTenant

HELLO: list[Any] = [{"role": "user", "content": "hello world"}]
WHOLE = {"ignore_eos": True}


@pytest.fixture
def chat(client: OpenAI, place: Place) -> Any:
    """Return a function that asks the model, by default for 16 tokens, greedily."""

    def ask(messages: Any = HELLO, **options: Any) -> ChatCompletion:
        defaults: dict[str, Any] = {"model": place.model, "max_completion_tokens": 16, "temperature": 0}
        return client.chat.completions.create(messages=messages, **(defaults | options))

    return ask


def text(answer: ChatCompletion, index: int = 0) -> str:
    """Return a choice's text."""
    return answer.choices[index].message.content or ""


def test_whole_answer(chat: Any, place: Place) -> None:
    """All that the SDK's type names is there, and usage adds up."""
    answer = chat(extra_body=WHOLE)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", place.model)
    assert answer.created > 1_600_000_000
    assert answer.system_fingerprint.startswith("fp_")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.refusal is None
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions(chat: Any, role: str) -> None:
    """Instructions come before the conversation under either name."""
    plain = chat()
    told = chat([{"role": role, "content": "be brief"}, *HELLO])
    assert told.usage.prompt_tokens > plain.usage.prompt_tokens
    assert text(told) != text(plain)


def test_both_names_of_instructions_are_one(chat: Any) -> None:
    """`developer` is today's name of `system`."""
    answers = [chat([{"role": role, "content": "be brief"}, *HELLO]) for role in ("system", "developer")]
    assert text(answers[0]) == text(answers[1])


def test_parts_of_text(chat: Any) -> None:
    """A content of parts is one text, joined by line breaks."""
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "world"}]
    joined = chat([{"role": "user", "content": "hello\nworld"}])
    assert text(chat([{"role": "user", "content": parts}])) == text(joined)


def test_an_answer_goes_back_as_it_came(chat: Any) -> None:
    """The SDK's own message is a message of the next turn."""
    first = chat()
    again = chat([*HELLO, first.choices[0].message, {"role": "user", "content": "go on"}])
    assert again.usage.prompt_tokens > first.usage.prompt_tokens + 4


def test_max_tokens_by_its_old_name(chat: Any) -> None:
    """`max_tokens` bounds the output as `max_completion_tokens` does."""
    answer = chat(max_completion_tokens=None, max_tokens=5, extra_body=WHOLE)
    assert answer.usage.completion_tokens == 5


def test_greedy_repeats(chat: Any) -> None:
    """At temperature 0 the same question has one answer."""
    assert text(chat()) == text(chat())


def test_seed_repeats(chat: Any) -> None:
    """The same seed gives the same text at temperature 1; other seeds give others."""
    drawn = {seed: text(chat(temperature=1, seed=seed, extra_body=WHOLE)) for seed in (1, 2, 3)}
    assert text(chat(temperature=1, seed=2, extra_body=WHOLE)) == drawn[2]
    assert len(set(drawn.values())) > 1


def test_top_p_close_to_nothing_is_greedy(chat: Any) -> None:
    """Of the smallest nucleus only the likeliest token is left."""
    assert text(chat(temperature=1, top_p=1e-6)) == text(chat())


@pytest.mark.parametrize("as_list", [True, False], ids=["list", "text"])
def test_stop(chat: Any, as_list: bool) -> None:
    """A stop string ends the output and isn't part of it."""
    whole = text(chat(extra_body=WHOLE))
    stop = whole[6:9]
    answer = chat(stop=[stop] if as_list else stop, extra_body=WHOLE)
    assert text(answer) == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_n(chat: Any) -> None:
    """Several choices of one prompt, numbered; the prompt counts once."""
    one = chat(temperature=1, extra_body=WHOLE)
    several = chat(temperature=1, n=3, seed=5, extra_body=WHOLE)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len({text(several, index) for index in range(3)}) > 1
    assert several.usage.prompt_tokens == one.usage.prompt_tokens
    assert several.usage.completion_tokens == 48


def test_logprobs(chat: Any) -> None:
    """Each token comes with its log-probability; bytes join to the text; none are there unless asked for."""
    answer = chat(logprobs=True, extra_body=WHOLE)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 16
    assert all(token.logprob <= 0 for token in tokens)
    joined = bytes(byte for token in tokens for byte in token.bytes)
    assert joined.decode(errors="replace") == text(answer)
    assert all(token.top_logprobs == [] for token in tokens)
    assert chat().choices[0].logprobs is None


def test_top_logprobs(chat: Any) -> None:
    """The likeliest tokens come best first, and greedy takes the first of them."""
    answer = chat(logprobs=True, top_logprobs=4, extra_body=WHOLE)
    for token in answer.choices[0].logprobs.content:
        ranks = [top.logprob for top in token.top_logprobs]
        assert len(ranks) == 4 and ranks == sorted(ranks, reverse=True)
        assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)


def test_logit_bias(chat: Any) -> None:
    """A bias of 100 makes a token certain, one of -100 rules it out."""
    forced = chat(logit_bias={"70": 100}, logprobs=True, extra_body=WHOLE)
    tokens = {token.token for token in forced.choices[0].logprobs.content}
    assert len(tokens) == 1
    banned = chat(logit_bias={"70": -100}, logprobs=True, extra_body=WHOLE)
    assert not tokens & {token.token for token in banned.choices[0].logprobs.content}


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty"])
def test_penalties(chat: Any, penalty: str) -> None:
    """A penalty makes what was said less likely: of a token that is biased more and more, it changes some output."""

    def is_changed(bias: int) -> bool:
        plain, fined = (chat(logit_bias={"70": bias}, extra_body=WHOLE, **{penalty: fine}) for fine in (0, 2))
        return text(plain) != text(fined)

    assert any(is_changed(bias) for bias in range(1, 9))


def test_what_changes_nothing_is_taken(chat: Any) -> None:
    """Fields about the caller, and fields at their defaults, leave the answer alone."""
    told = chat(
        user="somebody",
        safety_identifier="s",
        metadata={"a": "b"},
        store=False,
        frequency_penalty=0,
        presence_penalty=0,
        response_format={"type": "text"},
        modalities=["text"],
        parallel_tool_calls=True,
    )
    assert text(told) == text(chat())


@pytest.mark.parametrize(("asked", "used"), [("auto", "default"), ("default", "default"), ("flex", "flex")])
def test_service_tier(chat: Any, asked: str, used: str) -> None:
    """The answer says the tier that it was served in."""
    assert chat(service_tier=asked).service_tier == used


def test_priority_tier_needs_the_policy(dial: Any, place: Place) -> None:
    """A tenant of class interactive may ask for `priority`."""
    tenant = place.tenant(priority="interactive")
    answer = dial(api_key=tenant.key()).chat.completions.create(
        model=place.model, messages=HELLO, max_tokens=2, service_tier="priority"
    )
    assert answer.service_tier == "priority"


def test_cached_tokens(chat: Any) -> None:
    """What of a prompt was there already is told."""
    long = [{"role": "user", "content": "the tenant holds the block and the block holds the tokens " * 8}]
    chat(long)
    again = chat(long)
    assert 0 < again.usage.prompt_tokens_details.cached_tokens < again.usage.prompt_tokens


def test_raw_response(client: OpenAI, place: Place) -> None:
    """The SDK's raw response has the request's id and the status; parsed it is the answer."""
    raw = client.chat.completions.with_raw_response.create(model=place.model, messages=HELLO, max_tokens=2)
    assert raw.status_code == 200
    assert raw.headers["x-request-id"].startswith("req_")
    answer = raw.parse()
    assert answer.id.removeprefix("chatcmpl-") == raw.headers["x-request-id"].removeprefix("req_")


def test_rate_limit_headers(dial: Any, place: Place) -> None:
    """Where rates hold, the answer says what is left of them."""
    key = place.tenant(rpm=600, tpm=60_000).key()
    raw = dial(api_key=key).chat.completions.with_raw_response.create(model=place.model, messages=HELLO, max_tokens=2)
    assert raw.headers["x-ratelimit-limit-requests"] == "600"
    assert int(raw.headers["x-ratelimit-remaining-requests"]) < 600
    assert int(raw.headers["x-ratelimit-remaining-tokens"]) <= 60_000
    assert raw.headers["x-ratelimit-reset-tokens"]


def test_usage_is_metered(client: OpenAI, place: Place, home: SdkTenant) -> None:
    """The ledger has what the answer said."""
    answer = client.chat.completions.create(model=place.model, messages=HELLO, max_tokens=7, extra_body=WHOLE)
    record = home.record(answer.id)
    assert record["completion_tokens"] == answer.usage.completion_tokens == 7
    assert record["prompt_tokens"] == answer.usage.prompt_tokens


def test_top_k(chat: Any) -> None:
    """An extension: of one token only the likeliest is left, at any temperature."""
    assert text(chat(temperature=1.5, extra_body=WHOLE | {"top_k": 1})) == text(chat(extra_body=WHOLE))


def test_min_p(chat: Any) -> None:
    """An extension: no token is taken that is less likely than this share of the likeliest one's probability."""
    for seed in range(3):
        answer = chat(temperature=1, seed=seed, logprobs=True, top_logprobs=1, extra_body=WHOLE | {"min_p": 0.5})
        for token in answer.choices[0].logprobs.content:
            assert token.logprob >= token.top_logprobs[0].logprob + math.log(0.5) - 0.01


def test_repetition_penalty(chat: Any) -> None:
    """An extension: what was there before becomes less likely."""
    assert text(chat(extra_body=WHOLE | {"repetition_penalty": 1.8})) != text(chat(extra_body=WHOLE))


def test_stop_token_ids(chat: Any) -> None:
    """An extension: an output ends with one of these tokens."""
    answer = chat(logit_bias={"70": 100}, extra_body=WHOLE | {"stop_token_ids": [70]})
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("stop", 1)


def test_min_tokens(chat: Any) -> None:
    """An extension: no end before so many tokens."""
    answer = chat(logit_bias={"70": 100}, extra_body={"stop_token_ids": [70], "min_tokens": 6})
    assert answer.usage.completion_tokens > 6 or answer.choices[0].finish_reason == "length"


def test_beam_search(chat: Any) -> None:
    """An extension: a search finds the likeliest outputs."""
    answer = chat(temperature=None, n=2, extra_body={"use_beam_search": True, "beam_width": 4})
    assert len(answer.choices) == 2
    assert text(answer) != text(answer, 1)
