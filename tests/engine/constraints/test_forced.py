"""Tokens that a grammar leaves no choice about: taken ahead, as if they had been sampled."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import GrammarKind
from tests.engine.constraints.vocabularies import ENDS, VOCAB_SIZE, compiled, decode, encode, ids

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "kind": {"enum": ["minnow", "whale", "walrus"]},
            "many": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
        "required": ["name", "kind", "many"],
        "additionalProperties": False,
    }
)
GRAMMAR = compiled(GrammarKind.JSON_SCHEMA, SCHEMA)


@given(seed=st.integers(0, 9999), most=st.sampled_from([0, 1, 3, 32]))
def test_an_output_with_forced_tokens_is_one_that_could_have_been_sampled(seed: int, most: int) -> None:
    """Each of them is allowed where it stands, and the masks behind them are those of an output that sampled them."""
    chance, ends = random.Random(seed), frozenset(ENDS)
    ahead, steady = GRAMMAR.constraint(ends), GRAMMAR.constraint(ends)
    output: list[int] = []
    while not output or output[-1] not in ends:
        token = chance.choice(ids(ahead.mask(output, 0)))
        assert token in ids(steady.mask(output, 0))
        output.append(token)
        if token in ends:
            break
        forced = ahead.follow(output, 0, most)
        assert len(forced) <= most
        for one in forced:
            assert one in ids(steady.mask(output, 0))
            output.append(one)
        assert ids(ahead.mask(output, 0)) == ids(steady.mask(output, 0))
        assert ahead.follow(output, 0, most) == ()  # nothing is new
    value = json.loads(decode(output[:-1]))
    assert value["kind"] in ("minnow", "whale", "walrus")


def test_names_of_properties_are_forced() -> None:
    """Nothing else can come, so nobody is asked; what could be one thing or another is."""
    constraint = GRAMMAR.constraint(frozenset(ENDS))
    tokens = encode('{"name": "ab", "kind": "m')
    forced = constraint.follow(tokens, 0, 99)
    assert decode([*tokens, *forced]).startswith('{"name": "ab", "kind": "minnow", "many":')
    constraint = GRAMMAR.constraint(frozenset(ENDS))
    assert decode(list(constraint.follow(encode('{"name": "ab", "kind": "w'), 0, 99))) == ""


@pytest.mark.parametrize("stop", ["b", "c"])
def test_no_token_that_ends_the_output_is_forced(stop: str) -> None:
    """A request's own stop token is left to be sampled, and so is what follows it."""
    constraint = compiled(GrammarKind.REGEX, "abcd").constraint(frozenset({*ENDS, *encode(stop)}))
    forced = list(constraint.follow(encode("a"), 0, 99))
    assert decode(forced) == ("" if stop == "b" else "b")
    assert max(forced, default=0) < VOCAB_SIZE


def test_the_end_of_a_grammar_is_not_forced() -> None:
    """It is sampled, from a mask that allows ends alone."""
    constraint = compiled(GrammarKind.REGEX, "abc").constraint(frozenset(ENDS))
    forced = list(constraint.follow(encode("a"), 0, 99))
    assert decode(forced) == "bc"
    assert set(ids(constraint.mask([*encode("a"), *forced], 0))) == set(ENDS)
