"""A registered prefix is tokenised to what all requests that go on from it have in common."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from engine.protocol import pb
from gateway.controller.prefixes import form_of, tokenise
from gateway.workers.model import Model, model_from_card
from tenants.contracts import PrefixMessage, SharedPrefixView
from tests.engine.tiny_model import CHAT_TEMPLATE, make_tokenizer

SYSTEM = "You are the keeper of the tenant's blocks. Answer in one line, please."


def card(**changes: Any) -> pb.ModelCard:
    """Return a worker's card."""
    fields = {
        "worker_id": "w",
        "model": "tiny",
        "digest": "d" * 64,
        "tokenizer_json": make_tokenizer().to_str().encode(),
        "chat_template": CHAT_TEMPLATE,
        "vocab_size": 384,
        "max_context_tokens": 2048,
        "block_size": 16,
    }
    return pb.ModelCard(**(fields | changes))


MODEL = model_from_card(card(), created=0)


def chat(*turns: tuple[str, str]) -> SharedPrefixView:
    """Return a registered conversation."""
    return registered(messages=tuple(PrefixMessage(role=role, content=content) for role, content in turns))


def registered(**contents: Any) -> SharedPrefixView:
    """Return a registered prefix."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return SharedPrefixView(id="p", group="g", name="n", created_by="test", created_at=at, **contents)


def asked(*turns: tuple[str, str], model: Model = MODEL) -> list[int]:
    """Return what a chat request runs on."""
    return asyncio.run(model.chat_tokens([{"role": role, "content": content} for role, content in turns]))


def completed(text: str) -> list[int]:
    """Return what a completion request runs on."""
    return asyncio.run(MODEL.text_tokens([text]))[0]


@given(system=st.text(min_size=1), question=st.text())
def test_a_system_prompt_leads_every_chat(system: str, question: str) -> None:
    """Whatever is asked after a registered system prompt, the request begins with the prefix's tokens."""
    tokens = list(tokenise(MODEL, chat(("system", system))).token_ids)
    assert asked(("system", system), ("user", question))[: len(tokens)] == tokens


def test_a_system_prompt_is_shared_up_to_the_question() -> None:
    """Next to nothing is given away: the question's first token may join the line break before it, no more."""
    tokens = tokenise(MODEL, chat(("system", SYSTEM))).token_ids
    assert len(asked(("system", SYSTEM), ("user", "x"))) - len(tokens) < 10
    assert "keeper of the tenant" in MODEL.tokenizer.decode(list(tokens))


def test_examples_lead_a_chat_that_goes_on_from_them() -> None:
    """A conversation that ends with an answer is shared by requests that ask on."""
    turns = (("system", SYSTEM), ("user", "one"), ("assistant", "two"))
    tokens = list(tokenise(MODEL, chat(*turns)).token_ids)
    assert asked(*turns, ("user", "three"))[: len(tokens)] == tokens
    assert len(tokens) > len(tokenise(MODEL, chat(turns[0])).token_ids)


def test_a_users_last_message_may_go_on() -> None:
    """A document in a user's message is shared by requests that put their question behind it, in the same message."""
    tokens = list(tokenise(MODEL, chat(("user", "The document: blocks, tokens.\n\nQuestion:"))).token_ids)
    for question in (" who?", "\n\nwho?", "7?", " Straße?"):
        assert asked(("user", f"The document: blocks, tokens.\n\nQuestion:{question}"))[: len(tokens)] == tokens
    assert "The document" in MODEL.tokenizer.decode(tokens)


@given(text=st.text(min_size=1), more=st.sampled_from([" and so on", "\n\nnext", "7", "\n"]))
def test_a_text_leads_every_prompt(text: str, more: str) -> None:
    """A prompt that goes on from a registered text, not in the middle of a word, begins with the prefix's tokens."""
    tokens = list(tokenise(MODEL, registered(text=text)).token_ids)
    assert completed(text + more)[: len(tokens)] == tokens


def test_a_model_without_a_chat_form_says_so() -> None:
    """A conversation is nothing to a model without a template, and the reading says what to register instead."""
    model = model_from_card(card(chat_template=""), created=0)
    tokenised = tokenise(model, chat(("system", SYSTEM)))
    assert "no chat template" in tokenised.problem
    assert "as a text" in tokenised.problem
    assert not tokenised.token_ids
    assert not tokenise(model, registered(text=SYSTEM)).problem


def test_a_template_that_refuses_is_quoted() -> None:
    """What the template says against the messages is in the reading."""
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    model = model_from_card(card(chat_template=refusing + CHAT_TEMPLATE), created=0)
    assert "no system role" in tokenise(model, chat(("system", SYSTEM))).problem
    assert not tokenise(model, chat(("user", SYSTEM))).problem


@pytest.mark.parametrize(("words", "size"), [(300, "tokens"), (100_000, "characters")])
def test_what_no_request_can_begin_with_is_named(words: int, size: str) -> None:
    """A prefix that fills the context is useless; a flood is not even tokenised."""
    model = model_from_card(card(max_context_tokens=256), created=0)
    problem = tokenise(model, registered(text="tenant " * words)).problem
    assert size in problem
    assert "256 tokens" in problem


def test_a_tokenizer_that_fails_is_a_reading() -> None:
    """Whatever a tokenizer has against a text is said where the prefix is shown, and ends nothing."""
    of_one_word = Tokenizer(models.WordLevel({"a": 0}, unk_token="missing"))
    model = model_from_card(card(tokenizer_json=of_one_word.to_str().encode()), created=0)
    problem = tokenise(model, registered(text=SYSTEM)).problem
    assert "does not take it" in problem


def test_a_token_outside_the_model_is_kept_from_it() -> None:
    """A tokenizer may know more than its model: a worker would refuse the whole push for such a token."""
    model = model_from_card(card(vocab_size=260), created=0)
    tokenised = tokenise(model, registered(text=SYSTEM))
    assert "does not know" in tokenised.problem
    assert not tokenised.token_ids


@pytest.mark.parametrize(
    "change",
    [
        {"chat_template": CHAT_TEMPLATE + " "},
        {"tokenizer_json": make_tokenizer(300).to_str().encode()},
        {"special_tokens": {"bos_token": "<|im_start|>"}},
        {"max_context_tokens": 1024},
        {"vocab_size": 383},
        {"digest": "e" * 64},
    ],
)
def test_a_form_tells_ways_to_tokenise_apart(change: dict[str, Any]) -> None:
    """Equal weights with another template tokenise otherwise; who serves them makes no difference."""
    assert form_of(card()) == form_of(card(worker_id="another", block_size=32))
    assert form_of(card(**change)) != form_of(card())
