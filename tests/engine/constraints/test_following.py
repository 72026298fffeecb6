"""Outputs that follow grammars: right at every token, whole at their ends, the same in whatever pieces tokens come."""

import json
import random
import re
from collections.abc import Callable

import jsonschema
import pytest

from engine.constraints.base import Mask
from engine.errors import GrammarError, InvariantError
from engine.request import GrammarKind
from tests.engine.constraints.vocabularies import ENDS, compiled, decode, encode, ids, wander

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["minnow", "whale", "東京", 'a "quoted" one', None, 3]},
        "age": {"type": "integer", "minimum": -3, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "maxItems": 3},
        "nested": {"$ref": "#/$defs/node"},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"leaf": {"type": "boolean"}, "next": {"$ref": "#/$defs/node"}},
            "required": ["leaf"],
            "additionalProperties": False,
        }
    },
}
LARK = """
start: greeting (", " name)*
greeting: "hello" | "good day"
name: /[a-z]{2,4}/
"""


def is_json(text: str) -> bool:
    """Say whether a text is of the schema."""
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


GRAMMARS: dict[str, tuple[GrammarKind, str, Callable[[str], object]]] = {
    "json": (GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA), is_json),
    "object": (
        GrammarKind.JSON_SCHEMA,
        '{"type": "object", "maxProperties": 2, "additionalProperties": {"type": "boolean"}}',
        lambda text: isinstance(json.loads(text), dict),
    ),
    "regex": (GrammarKind.REGEX, r"\d{1,3}(\.\d{2})?( €| EUR)", re.compile(r"\d{1,3}(\.\d{2})?( €| EUR)").fullmatch),
    "lark": (GrammarKind.LARK, LARK, re.compile(r"(hello|good day)(, [a-z]{2,4})*").fullmatch),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_random_outputs_are_of_the_grammar(name: str) -> None:
    """Whatever of the allowed tokens is chosen: an output that ends is whole."""
    kind, text, is_word = GRAMMARS[name]
    grammar, num_ended = compiled(kind, text), 0
    for seed in range(60):
        output = wander(grammar.constraint(frozenset(ENDS)), seed)
        if output[-1] in ENDS:
            num_ended += 1
            assert is_word(decode(output[:-1])), decode(output)
    assert num_ended > 30


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_do_not_depend_on_how_tokens_come(name: str) -> None:
    """One after the other or many at once, as after a preemption: what may come next is the same."""
    kind, text, _ = GRAMMARS[name]
    grammar, ends = compiled(kind, text), frozenset(ENDS)
    output = wander(grammar.constraint(ends), 3, most=60)
    output = output[:-1] if output[-1] in ENDS else output
    steady, chance = grammar.constraint(ends), random.Random(5)
    masks: list[Mask] = [steady.mask(output[:count], 0).copy() for count in range(len(output) + 1)]
    for _ in range(5):
        jumpy, count = grammar.constraint(ends), 0
        while count < len(output):
            count = min(len(output), count + chance.randint(1, 9))
            for _ in range(chance.randint(1, 2)):
                assert (jumpy.mask(output[:count], 0) == masks[count]).all()


def test_prompt_is_no_part_of_the_output() -> None:
    """Only what comes after it is followed."""
    constraint = compiled(GrammarKind.REGEX, "abc").constraint(frozenset(ENDS))
    prompt = encode("xyz")
    tokens = [*prompt, *encode("a")]
    assert decode([max(ids(constraint.mask(tokens, len(prompt))), key=lambda one: len(decode([one])))]) in ("b", "bc")


@pytest.mark.parametrize(
    ("pattern", "may_end"), [("ab?", [False, True, True]), ("ab", [False, False, True]), ("(ab)*", [True, False, True])]
)
def test_end_tokens_are_allowed_where_the_output_may_end(pattern: str, may_end: list[bool]) -> None:
    """There and nowhere else; where the grammar can go nowhere else, they alone."""
    constraint, tokens = compiled(GrammarKind.REGEX, pattern).constraint(frozenset(ENDS)), [*encode("a"), *encode("b")]
    for count, expected in enumerate(may_end):
        allowed = set(ids(constraint.mask(tokens[:count], 0)))
        assert (allowed >= set(ENDS)) is expected
        assert not expected or allowed == set(ENDS) or "*" in pattern or count == 1


def test_stop_tokens_of_the_request_end_it_too() -> None:
    """Whatever ends the output may come where the grammar may end, also a token that is none of the model's ends."""
    stop = encode("z")[0]
    constraint = compiled(GrammarKind.REGEX, "ab?").constraint(frozenset({*ENDS, stop, 10**9}))
    tokens = encode("a")
    assert stop not in ids(constraint.mask([], 0))
    assert stop in ids(constraint.mask(tokens, 0))
    empty = compiled(GrammarKind.REGEX, "(ab)*").constraint(frozenset({*ENDS, stop}))
    assert stop in ids(empty.mask([], 0))


def test_outputs_of_one_grammar_share_no_state() -> None:
    """Each goes its own way; another one begins at the beginning."""
    grammar = compiled(GrammarKind.REGEX, "ab|cd")
    one = grammar.constraint(frozenset(ENDS))
    first = ids(one.mask([], 0))
    after_a = ids(one.mask(encode("a"), 0))
    other = one.another()
    assert ids(other.mask([], 0)) == first
    after_c = ids(other.mask(encode("c"), 0))
    assert after_a != after_c
    assert ids(one.mask(encode("a"), 0)) == after_a
    assert ids(grammar.constraint(frozenset(ENDS)).mask([], 0)) == first


def test_mask_is_good_until_the_next_token() -> None:
    """The same tokens get the same mask; nobody else's turn changes it."""
    grammar = compiled(GrammarKind.REGEX, "[ab]+")
    one, other = grammar.constraint(frozenset(ENDS)), grammar.constraint(frozenset(ENDS))
    mask = one.mask(encode("a"), 0)
    kept = mask.copy()
    other.mask(encode("abab"), 0)
    assert one.mask(encode("a"), 0) is mask
    assert (mask == kept).all()


def test_token_that_is_not_allowed_is_an_error() -> None:
    """The output cannot go on, and the reason is given."""
    constraint = compiled(GrammarKind.REGEX, "abc").constraint(frozenset(ENDS))
    with pytest.raises(GrammarError, match="does not follow"):
        constraint.mask(encode("x"), 0)


def test_output_that_gets_shorter_is_our_own_mistake() -> None:
    """Tokens are never taken back."""
    constraint = compiled(GrammarKind.REGEX, "[ab]*").constraint(frozenset(ENDS))
    constraint.mask(encode("ab"), 0)
    with pytest.raises(InvariantError):
        constraint.mask([], 0)
