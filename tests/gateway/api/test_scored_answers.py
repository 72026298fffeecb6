"""Log-probabilities through real processes with the real OpenAI SDK, against `transformers`' own code."""

from collections.abc import Sequence
from typing import Any

import openai
import pytest
import torch

from gateway.workers.vocabulary import Vocabulary
from tests.engine.tiny_model import make_tokenizer
from tests.gateway.api.test_several_outputs import tiny_model
from tests.gateway.wire.stack import Stack, TenantInTest

TOKENIZER = make_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)
TOLERANCE = 2e-3
HELLO = [{"role": "user", "content": "hello world"}]
LONG = {"ignore_eos": True}
CHAT: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "extra_body": LONG}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "the tenant holds", "max_tokens": 12, "extra_body": LONG}
SCORING: dict[str, Any] = {"model": "tiny", "max_tokens": 0, "echo": True, "logprobs": 0}


def reference(stack: Stack, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities of every token at every place but the first, by the model alone."""
    with torch.no_grad():
        return tiny_model(stack)(torch.tensor([list(tokens)])).logits[0, :-1].log_softmax(-1)


def rows(logprobs: Any) -> list[tuple[str, float, dict[str, float]]]:
    """Return name, log-probability and the likeliest ones of each token of a completion."""
    tops = [dict(top) if top is not None else {} for top in logprobs.top_logprobs]
    return list(zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True))


def test_prompt_is_scored_as_by_the_reference(stack: Stack, tenant: TenantInTest) -> None:
    """Each token of an echoed prompt, and the two likeliest at its place, have the model's own log-probabilities."""
    tokens = TOKENIZER.encode("the tenant holds").ids
    expected = reference(stack, tokens)
    answer = stack.openai(tenant.key()).completions.create(**TEXT | {"max_tokens": 1}, echo=True, logprobs=2)
    first, *others = rows(answer.choices[0].logprobs)[: len(tokens)]
    assert first == (TOKENIZER.decode(tokens[:1]), None, {})
    for place, (token, (_, logprob, top)) in enumerate(zip(tokens[1:], others, strict=True)):
        assert logprob == pytest.approx(float(expected[place, token]), abs=TOLERANCE)
        assert max(top.values()) == pytest.approx(float(expected[place].max()), abs=TOLERANCE)


@pytest.mark.parametrize("streamed", [True, False])
def test_scoring_alone(stack: Stack, tenant: TenantInTest, streamed: bool) -> None:
    """With `max_tokens` 0 the answer is the prompt and its scores, also of token ids, and the same each time."""
    client = stack.openai(tenant.key())
    tokens = TOKENIZER.encode("the tenant holds").ids
    expected = reference(stack, tokens)
    for prompt in ("the tenant holds", tokens):
        body = TEXT | {"prompt": prompt, "max_tokens": 0}
        usage = {"stream_options": {"include_usage": True}} if streamed else {}
        made = client.completions.create(**body, echo=True, logprobs=0, stream=streamed, **usage)
        answers = list(made) if streamed else [made]
        choices = [choice for answer in answers for choice in answer.choices]
        assert (answers[-1].usage.prompt_tokens, answers[-1].usage.completion_tokens) == (len(tokens), 0)
        assert "".join(choice.text for choice in choices) == "the tenant holds"
        assert choices[-1].finish_reason == "length"
        (scores,) = [choice.logprobs for choice in choices if choice.logprobs is not None]
        told = scores.token_logprobs[1:]
        assert told == pytest.approx([float(expected[at, token]) for at, token in enumerate(tokens[1:])], abs=TOLERANCE)


def test_single_token_has_nothing_to_be_scored_by(stack: Stack, tenant: TenantInTest) -> None:
    """A prompt of one token, scored alone, has one entry without a number."""
    client = stack.openai(tenant.key())
    answer = client.completions.create(**TEXT | {"prompt": "a", "max_tokens": 0}, echo=True, logprobs=2)
    (choice,) = answer.choices
    assert (choice.text, choice.logprobs.tokens, choice.logprobs.token_logprobs) == ("a", ["a"], [None])


def test_several_prompts_are_scored_at_once(stack: Stack, tenant: TenantInTest) -> None:
    """Each prompt has its own scores, the same as alone."""
    client = stack.openai(tenant.key())
    prompts = ["the tenant holds", "a memory", "one two three"]
    alone = [client.completions.create(**SCORING | {"prompt": prompt}).choices[0] for prompt in prompts]
    together = client.completions.create(**SCORING | {"prompt": prompts}).choices
    assert [choice.text for choice in together] == prompts
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs.tokens == other.logprobs.tokens
        assert one.logprobs.token_logprobs[1:] == pytest.approx(other.logprobs.token_logprobs[1:], abs=TOLERANCE)


def test_chat_is_scored_as_by_the_reference(stack: Stack, tenant: TenantInTest) -> None:
    """Joined log-probabilities of a sampled answer are those of a forward pass over prompt and answer."""
    client = stack.openai(tenant.key())
    whole = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=3, seed=5, temperature=1.3)
    content = whole.choices[0].logprobs.content
    prompt = TOKENIZER.encode("<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n").ids
    by_bytes = {VOCABULARY[token].data: token for token in range(TOKENIZER.get_vocab_size())}
    tokens = [by_bytes[bytes(entry.bytes)] for entry in content]
    expected = reference(stack, [*prompt, *tokens])[len(prompt) - 1 :]
    for place, (token, entry) in enumerate(zip(tokens, content, strict=True)):
        assert entry.logprob == pytest.approx(float(expected[place, token]), abs=TOLERANCE)
        likeliest = expected[place].topk(3).values.tolist()
        assert [one.logprob for one in entry.top_logprobs] == pytest.approx(likeliest, abs=TOLERANCE)
    assert len(content) == 12


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"stop": ["e"]}, {"stop": ["the", " a"], "n": 2}])
def test_stream_has_the_scores_of_the_whole(stack: Stack, tenant: TenantInTest, fields: dict[str, Any]) -> None:
    """A stream's log-probabilities join to those of the whole answer, and belong to the text that came so far."""
    client = stack.openai(tenant.key())
    common = CHAT | {"logprobs": True, "top_logprobs": 2, "seed": 3, "temperature": 1.1, "max_tokens": 40} | fields
    whole = client.chat.completions.create(**common)
    texts: dict[int, str] = {}
    contents: dict[int, list[Any]] = {}
    for chunk in client.chat.completions.create(**common, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            told = contents.setdefault(choice.index, [])
            told += choice.logprobs.content if choice.logprobs else []
    for choice in whole.choices:
        assert texts[choice.index] == choice.message.content
        assert contents[choice.index] == choice.logprobs.content
        said = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content if not entry.token.startswith("<|"))
        assert said.decode("utf-8", "replace").startswith(choice.message.content.rstrip("\ufffd"))


def test_best_of_is_scored(stack: Stack, tenant: TenantInTest) -> None:
    """What is chosen among several has its own scores, best first."""
    client = stack.openai(tenant.key())
    answer = client.completions.create(**TEXT, logprobs=1, n=2, best_of=4, seed=3)
    means = [sum(choice.logprobs.token_logprobs) / 12 for choice in answer.choices]
    assert [len(choice.logprobs.tokens) for choice in answer.choices] == [12, 12]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("streamed", [True, False])
def test_beams_are_scored_as_by_the_reference(stack: Stack, tenant: TenantInTest, streamed: bool) -> None:
    """The outputs of a search have the log-probabilities of their own tokens."""
    client = stack.openai(tenant.key())
    search = LONG | {"use_beam_search": True, "beam_width": 3}
    made = client.chat.completions.create(**CHAT | {"extra_body": search}, logprobs=True, n=2, stream=streamed)
    contents: dict[int, list[Any]] = {0: [], 1: []}
    for choice in [choice for answer in (made if streamed else [made]) for choice in answer.choices]:
        contents[choice.index] += choice.logprobs.content if choice.logprobs else []
    prompt = TOKENIZER.encode("<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n").ids
    by_bytes = {VOCABULARY[token].data: token for token in range(TOKENIZER.get_vocab_size())}
    for content in contents.values():
        tokens = [by_bytes[bytes(entry.bytes)] for entry in content]
        expected = reference(stack, [*prompt, *tokens])[len(prompt) - 1 :]
        of_tokens = [float(expected[place, token]) for place, token in enumerate(tokens)]
        assert [entry.logprob for entry in content] == pytest.approx(of_tokens, abs=TOLERANCE)
    assert [len(content) for content in contents.values()] == [12, 12]


def test_biases_and_penalties_reach_the_model(stack: Stack, tenant: TenantInTest) -> None:
    """A token that is favoured above all others comes every time, unless what was there before is penalised."""
    client = stack.openai(tenant.key())
    bias = {str(TOKENIZER.token_to_id("a")): 100, str(TOKENIZER.token_to_id("b")): 100}
    common = CHAT | {"logit_bias": bias, "temperature": 0, "max_tokens": 40}
    plain = client.chat.completions.create(**common).choices[0].message.content
    assert set(plain) <= {"a", "b"}
    for penalty in ("frequency_penalty", "presence_penalty"):
        other = client.chat.completions.create(**common | {penalty: 2}).choices[0].message.content
        assert set(other) <= {"a", "b"}
    assert set(client.chat.completions.create(**common, frequency_penalty=2).choices[0].message.content) == {"a", "b"}


def test_min_tokens_put_the_end_off(stack: Stack, tenant: TenantInTest) -> None:
    """A stop token ends nothing before `min_tokens`, and is no part of the scores."""
    client = stack.openai(tenant.key())
    common = CHAT | {"logit_bias": {str(TOKENIZER.token_to_id("a")): 100}, "temperature": 0, "max_tokens": 20}
    ends = {"stop_token_ids": [TOKENIZER.token_to_id("a")], "ignore_eos": True}
    early = client.chat.completions.create(**common | {"extra_body": ends}, logprobs=True)
    assert (early.usage.completion_tokens, early.choices[0].logprobs.content) == (1, [])
    late = client.chat.completions.create(**common | {"extra_body": ends | {"min_tokens": 5}}, logprobs=True)
    assert (late.usage.completion_tokens, late.choices[0].finish_reason) == (6, "stop")
    assert len(late.choices[0].logprobs.content) == 5


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"regex": "[ab]{3}"}, {f"{x}{y}{z}" for x in "ab" for y in "ab" for z in "ab"}),
        ({"guided_choice": ["yes", 'no "really"', "東京"]}, {"yes", 'no "really"', "東京"}),
        ({"grammar": 'start: "x" | "y" "z"'}, {"x", "yz"}),
        ({"structured_outputs": {"json": {"enum": [1, "b"]}}}, {"1", '"b"'}),
    ],
)
def test_output_is_what_was_asked_for(
    stack: Stack, tenant: TenantInTest, fields: dict[str, Any], texts: set[str]
) -> None:
    """However the model would go on, the output is one of those that the format has."""
    answer = stack.openai(tenant.key()).chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=40, n=4, seed=1, extra_body=fields
    )
    assert {choice.message.content.strip() for choice in answer.choices} <= texts
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


@pytest.mark.parametrize("field", ["regex", "grammar", "guided_json", "response_format"])
def test_format_that_cannot_be_is_named(stack: Stack, tenant: TenantInTest, field: str) -> None:
    """What the worker can't read as a format is a 400 that names the client's own field."""
    wrong = {
        "regex": "(",
        "grammar": "start: nothing",
        "guided_json": {"type": "no such type"},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": 5}}},
    }
    with pytest.raises(openai.BadRequestError) as caught:
        stack.openai(tenant.key()).chat.completions.create(**CHAT | {"extra_body": {field: wrong[field]}})
    assert caught.value.param == field
