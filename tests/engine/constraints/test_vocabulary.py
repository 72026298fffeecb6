"""Model and tokenizer of different sizes, and models that no grammar can be used with."""

import json

import numpy as np
import pytest

from engine.constraints.compile import open_compiler
from engine.constraints.following import CompiledGrammar
from engine.errors import GrammarError
from engine.request import Grammar, GrammarKind
from tests.engine.constraints.vocabularies import ENDS, VOCAB_SIZE, encode, ids, tokenizer, tokenizer_json

ANY_TEXT = Grammar(GrammarKind.REGEX, "(?s:.*)")


def compiled(size: int, ends: tuple[int, ...] = ENDS) -> CompiledGrammar:
    """Return any text as a grammar, over a model with so many logits."""
    return open_compiler(tokenizer_json(), size, ends)(ANY_TEXT)


@pytest.mark.parametrize("size", [VOCAB_SIZE, VOCAB_SIZE + 1, VOCAB_SIZE + 500])
def test_model_with_more_logits_than_tokens(size: int) -> None:
    """The mask is as long as the logits, and allows nothing that stands for no text."""
    mask = compiled(size).first
    assert len(mask) == -(-size // 32)
    assert max(ids(mask)) < tokenizer().get_vocab_size() == VOCAB_SIZE


@pytest.mark.parametrize("size", [300, 320, 383])
def test_model_with_fewer_logits_than_tokens(size: int) -> None:
    """The mask ends where the logits end, with no bit beyond them."""
    mask = compiled(size).first
    assert len(mask) == -(-size // 32)
    assert 290 < max(ids(mask)) < size


def test_special_tokens_are_no_text() -> None:
    """Of the special tokens those that end an output are allowed, and no others."""
    allowed = set(ids(compiled(VOCAB_SIZE, ends=(2,)).first))
    assert 2 in allowed
    assert allowed.isdisjoint({0, 1})


def test_every_end_token_ends() -> None:
    """A model may have several."""
    allowed = set(ids(compiled(VOCAB_SIZE).first))
    assert allowed.issuperset(ENDS)


@pytest.mark.parametrize("ends", [(), (VOCAB_SIZE,)])
def test_model_without_an_end_token(ends: tuple[int, ...]) -> None:
    """Its outputs could not end with a grammar: it is said so."""
    with pytest.raises(GrammarError, match="no end token"):
        compiled(VOCAB_SIZE, ends)


@pytest.mark.parametrize(
    "text", ["", "{}", "not json", json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {}}})]
)
def test_tokenizer_that_cannot_be_used(text: str) -> None:
    """It is the model's fault, and said so."""
    with pytest.raises(GrammarError, match="tokenizer"):
        open_compiler(text.encode(), VOCAB_SIZE, ENDS)


def test_text_of_several_bytes_a_character() -> None:
    """Tokens that are parts of a character are allowed one after the other, and the output cannot end between them."""
    grammar = open_compiler(tokenizer_json(), VOCAB_SIZE, ENDS)(Grammar(GrammarKind.REGEX, "東+"))
    constraint = grammar.constraint(frozenset(ENDS))
    tokens = encode("東")
    assert len(tokens) > 1
    for count in range(len(tokens) + 1):
        allowed = ids(constraint.mask(tokens[:count], 0))
        assert (set(ENDS) <= set(allowed)) == (count == len(tokens))
        if count < len(tokens):
            assert tokens[count] in allowed
    assert constraint.mask(tokens, 0).dtype == np.uint32
