"""What is a grammar, and what is none: each with the reason."""

import json

import pytest

from engine.constraints.trial import try_out
from engine.errors import GrammarError
from engine.request import GrammarKind
from tests.engine.alternating import Prepared
from tests.engine.constraints.vocabularies import ENDS, compiled, decode, encode, ids, wander

JSON, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (JSON, "", "JSON"),
        (JSON, "[1]", "JSON"),
        (JSON, "true", "JSON"),
        (JSON, '{"a":' * 2000 + "1" + "}" * 2000, "recursion limit"),
        (JSON, '{"type": "objekt"}', "objekt"),
        (JSON, '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        (JSON, '{"$ref": "http://127.0.0.1:9/x"}', "127.0.0.1"),
        (JSON, '{"$ref": "file:///etc/passwd"}', "does not fetch"),
        (JSON, '{"$ref": "#/$defs/none"}', "none"),
        (JSON, '{"$ref": "#"}', "no text can come next"),
        (JSON, '{"oneOf": [{"type": "string"}, {"maxLength": 3}]}', "oneOf"),
        (JSON, '{"type": "string", "pattern": "(?=a)b"}', "look"),
        (REGEX, "[a-", "regex"),
        (REGEX, "(" * 60_000 + "a" + ")" * 60_000, "invalid regex"),
        (REGEX, r"(a)\1", "backreferences"),
        (REGEX, r"a(?!b)", "look"),
        (LARK, "", "Empty"),
        (LARK, "start: nothing", "nothing"),
        (LARK, "start: start", "no text can come next"),
        (LARK, 'start: "a"\nstart: "b"', "start"),
        (LARK, "start: " + "(" * 60_000 + '"a"' + ")" * 60_000, "nested"),
        (LARK, '{"grammars": [{"regex": "a"}]}', "Lark"),
        (LARK, '%import elsewhere.FILE\nstart: "a"', "elsewhere"),
    ],
)
def test_what_is_no_grammar(kind: GrammarKind, text: str, reason: str) -> None:
    """The reason names what is wrong, and is short enough to be sent."""
    with pytest.raises(GrammarError) as caught:
        compiled(kind, text)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


def test_options_in_a_schema_loosen_nothing() -> None:
    """A schema may say how it wants to be compiled: what is not enforced is refused all the same."""
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True, "coerce_one_of": True}}
    with pytest.raises(GrammarError, match="uniqueItems"):
        compiled(JSON, json.dumps(schema))


def test_json_is_written_as_python_writes_it() -> None:
    """On one line, with the separators of `json.dumps`, whatever the schema says of white space."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"type": "null"}, "maxItems": 3}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": True},
    }
    grammar = compiled(JSON, json.dumps(schema))
    for seed in range(20):
        output = wander(grammar.constraint(frozenset(ENDS)), seed)
        assert output[-1] in ENDS
        text = decode(output[:-1])
        assert text == json.dumps(json.loads(text))


def test_digits_of_a_regular_expression_are_ascii() -> None:
    """`\\d` is 0 to 9, not every script's."""
    constraint = compiled(REGEX, r"\d").constraint(frozenset(ENDS))
    assert sorted(decode([token]) for token in ids(constraint.mask([], 0))) == list("0123456789")


@pytest.mark.parametrize("pattern", ["a/b", r"a\/b", "a\nb", r"a\nb"])
def test_slashes_and_lines_in_a_regular_expression(pattern: str) -> None:
    """They are what they are in any regular expression."""
    text = "a\nb" if "n" in pattern or "\n" in pattern else "a/b"
    constraint, tokens = compiled(REGEX, pattern).constraint(frozenset(ENDS)), [encode(one)[0] for one in text]
    for count, token in enumerate(tokens):
        assert token in ids(constraint.mask(tokens[:count], 0))
    assert set(ids(constraint.mask(tokens, 0))) == set(ENDS)


@pytest.mark.parametrize("text", ["3!", "15!"])
def test_grammar_that_fails_after_some_tokens_is_found_out(text: str) -> None:
    """What no output could go through is told before anybody begins one."""
    with pytest.raises(GrammarError, match="cannot be followed beyond"):
        try_out(Prepared(text, is_done=True), frozenset({900}))


def test_usual_grammars_pass_the_trial() -> None:
    """A trial looks at some beginnings, the same ones each time, and leaves no trace."""
    grammar = compiled(JSON, '{"type": "object"}')
    first = ids(grammar.constraint(frozenset(ENDS)).mask([], 0))
    for _ in range(2):
        try_out(grammar, frozenset(ENDS))
    assert ids(grammar.constraint(frozenset(ENDS)).mask([], 0)) == first
