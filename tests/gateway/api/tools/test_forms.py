"""The grammars of the forms, compiled as a worker compiles them."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from engine.constraints.compile import open_compiler
from engine.request import Grammar as AskedGrammar
from engine.request import GrammarKind
from gateway.api.functions import Function
from gateway.api.tools.forms import Form, Hermes, Llama, Mistral, Named, short_id
from gateway.api.tools.grammar import Grammar
from gateway.api.tools.parser import Parser
from gateway.api.tools.pieces import whole
from tests.engine.tiny_model import make_tokenizer
from tests.gateway.api.tools.samples import FORMS, FUNCTIONS, NAMES, SWITCH, WEATHER
from tests.gateway.api.tools.test_parser import Calls, written

MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")
STEPS = 400  # tokens of a walk that does not end by itself


def _with_markers() -> Tokenizer:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(MARKERS))
    return tokenizer


TOKENIZERS = {"text": make_tokenizer(), "special": _with_markers()}
COMPILERS = {
    kind: open_compiler(tokenizer.to_str().encode(), tokenizer.get_vocab_size(), [2])
    for kind, tokenizer in TOKENIZERS.items()
}
KINDS = pytest.mark.parametrize("kind", TOKENIZERS)
ALL_FORMS = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


class Compiled:
    """A form's grammar, as a worker has it."""

    def __init__(
        self,
        form: Form,
        kind: str,
        *,
        mixed: bool = False,
        most: int = 4,
        exact: bool = True,
        functions: Sequence[Function] = FUNCTIONS,
    ) -> None:
        self.tokenizer = TOKENIZERS[kind]
        special = {text: self.tokenizer.token_to_id(text) for text in form.markers} if kind == "special" else {}
        grammar = Grammar({text: token for text, token in special.items() if token is not None}, exact=exact)
        start = (form.mixed if mixed else form.calls)(grammar, functions, most=most)
        self.text = grammar.text(start)
        self.grammar = COMPILERS[kind](AskedGrammar(GrammarKind.LARK, self.text))

    def accepts(self, text: str) -> bool:
        """Return whether an output may be this text."""
        matcher = self.grammar.matcher()
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        return (
            matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()
        )

    def walk(self, seed: int, *, chance_to_end: float = 0.2) -> tuple[str, bool]:
        """Return a random output, and whether it came to an end; it may end earlier than it must."""
        draw, matcher, text = random.Random(seed), self.grammar.matcher(), []
        for _ in range(STEPS):
            allowed = _allowed(matcher)
            if not allowed or (2 in allowed and (len(allowed) == 1 or draw.random() < chance_to_end)):
                return "".join(text), True
            token = draw.choice([one for one in allowed if one != 2])
            assert matcher.consume_token(token)
            text.append(self.tokenizer.decode([token], skip_special_tokens=False))
        return "".join(text), False


def _allowed(matcher: LLMatcher) -> list[int]:
    return [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]


def reading(form: Form, text: str) -> tuple[str | None, Calls]:
    """Return content and calls of an output."""
    parser = Parser(form.syntax, NAMES)
    told = whole([*parser.push(text), *parser.flush()])
    return told.content, [(call.name, call.arguments) for call in told.calls]


ON: tuple[str, str] = ("switch", '{"on": true}')
ROME: tuple[str, str] = ("get_weather", '{"town": "Rome", "days": 3}')
NO_ARGUMENTS: tuple[str, str] = ("no-thing", "{}")
WRONG: tuple[str, str] = ("switch", '{"on": 1}')
UNKNOWN: tuple[str, str] = ("other", "{}")


def spaced(form: Form, text: str) -> str:
    """Return calls as this very form writes them."""
    return text.replace("[TOOL_CALLS] [", "[TOOL_CALLS][") if form is FORMS["mistral without a space"] else text


@ALL_FORMS
@KINDS
def test_forced_calls(form: Form, kind: str) -> None:
    """What must be calls is calls of known functions, one or several, with arguments that their schemas describe."""
    compiled = Compiled(form, kind)
    for calls in ([ON], [ROME], [NO_ARGUMENTS], [ROME, ON, ROME]):
        assert compiled.accepts(spaced(form, written(form, calls)))
    for calls in ([WRONG], [UNKNOWN], [ROME, UNKNOWN], [("get_weather", "{}")]):
        assert not compiled.accepts(spaced(form, written(form, calls)))
    assert not compiled.accepts("")
    assert not compiled.accepts("hello")
    assert not compiled.accepts(spaced(form, "hello" + written(form, [ON])))


@ALL_FORMS
@KINDS
@pytest.mark.parametrize("mixed", [False, True], ids=["forced", "mixed"])
def test_one_call_at_most(form: Form, kind: str, mixed: bool) -> None:
    """Without parallel calls the output ends after the first."""
    compiled = Compiled(form, kind, mixed=mixed, most=1)
    assert compiled.accepts(spaced(form, written(form, [ON])))
    assert not compiled.accepts(spaced(form, written(form, [ON, ROME])))


@ALL_FORMS
@KINDS
@pytest.mark.parametrize("mixed", [False, True], ids=["forced", "mixed"])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_calls_come_to_an_end(form: Form, kind: str, mixed: bool, most: int) -> None:
    """The output may end after each call, and there is no call after so many."""
    compiled = Compiled(form, kind, mixed=mixed, most=most)
    for count in range(1, most + 1):
        assert compiled.accepts(spaced(form, written(form, [ON] * count)))
    assert not compiled.accepts(spaced(form, written(form, [ON] * (most + 1))))


@ALL_FORMS
@KINDS
@pytest.mark.parametrize("most", [1, 3])
def test_a_model_that_never_wants_to_end(form: Form, kind: str, most: int) -> None:
    """Where calls are forced, who goes on for as long as it is let makes so many calls at most, and then must end."""
    compiled = Compiled(form, kind, most=most, functions=[SWITCH])
    text, ended = compiled.walk(0, chance_to_end=0.0)
    _, calls = reading(form, text)
    assert ended
    assert 1 <= len(calls) <= most


@ALL_FORMS
@KINDS
def test_text_or_calls(form: Form, kind: str) -> None:
    """What may be text or calls is either; a strict function keeps its schema, another takes any object."""
    compiled = Compiled(form, kind, mixed=True, exact=False)
    for text in ("", "hello world", "a\n\n東 < [ {", '{"town": "Rome"}', '{"name": "Rome"}'):
        assert compiled.accepts(text)
    for calls in ([ON], [ROME, ON], [("get_weather", '{"other": 1}')]):
        assert compiled.accepts(spaced(form, written(form, calls)))
    for calls in ([WRONG], [UNKNOWN], [ROME, WRONG]):
        if not (form is FORMS["llama"] and calls[0] == UNKNOWN):  # any object is a text, but for known functions
            assert not compiled.accepts(spaced(form, written(form, calls)))


@pytest.mark.parametrize("form", [Hermes(), Mistral(), Named()], ids=["hermes", "mistral", "named"])
@KINDS
def test_text_before_calls(form: Form, kind: str) -> None:
    """Where calls have a marker, text may stand before them."""
    compiled = Compiled(form, kind, mixed=True)
    assert compiled.accepts(f"Well, 2 < 3.\n{written(form, [ROME])}")
    assert not compiled.accepts(f"Well.\n{written(form, [WRONG])}")


@KINDS
def test_llama_text_that_looks_like_a_call(kind: str) -> None:
    """No spacing makes a text of a call that a strict function would refuse."""
    compiled = Compiled(Llama(), kind, mixed=True)
    for head in ('{ "name": "switch"', ' [{"name" :"switch"', '{"type": "function", "name": "switch"'):
        assert not compiled.accepts(f'{head}, "parameters": {{"on": 1}}}}')


def test_llama_tag() -> None:
    """The tag, where it is a token, may stand before calls."""
    assert Compiled(Llama(), "special", mixed=True).accepts(f"<|python_tag|>{written(Llama(), [ON])}")


@ALL_FORMS
@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_forced_is_read(form: Form, kind: str, seed: int) -> None:
    """A random output that must be calls is read as calls alone, whose arguments are what the schema says."""
    compiled = Compiled(form, kind, functions=[SWITCH])
    text, ended = compiled.walk(seed)
    content, calls = reading(form, text)
    assert calls
    assert content is None or not ended  # a call that was cut off before it was one
    assert all(isinstance(json.loads(arguments)["on"], bool) for _, arguments in calls[:-1])
    assert not ended or json.loads(calls[-1][1])["on"] in (True, False)


@ALL_FORMS
@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_text_is_read_as_text(form: Form, kind: str, seed: int) -> None:
    """A random output of text or calls gives no call that its grammar has not seen to."""
    compiled = Compiled(form, kind, mixed=True, functions=[SWITCH])
    text, ended = compiled.walk(seed)
    _, calls = reading(form, text)
    whole_calls = calls if ended else calls[:-1]
    assert all(list(json.loads(arguments)) == ["on"] for _, arguments in whole_calls)


def test_schemas_that_grammars_do_not_know() -> None:
    """Keywords that no grammar keeps are passed over, unless the function is strict: then it is refused."""
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "format": "my-own"}}}
    loose = Function(name="f", parameters=schema)
    assert Compiled(Hermes(), "text", functions=[loose]).accepts(written(Hermes(), [("f", '{"a": "x"}')]))
    with pytest.raises(Exception, match="my-own"):
        Compiled(Hermes(), "text", functions=[Function(name="f", parameters=schema, strict=True)])


@pytest.mark.parametrize(
    ("more", "open_"),
    [
        ({}, False),
        ({"additionalProperties": False}, False),
        ({"additionalProperties": True}, True),
        ({"additionalProperties": {"type": "integer"}}, True),
        ({"required": ["b"]}, True),
    ],
)
def test_properties_that_nobody_named(more: dict[str, Any], open_: bool) -> None:
    """Where a schema says nothing of other properties, there are none; where it allows or requires some, there are."""
    function = Function(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}} | more)
    compiled = Compiled(Hermes(), "text", functions=[function])
    assert compiled.accepts(written(Hermes(), [("f", '{"a": 1, "b": 2}')])) is open_


def test_schemas_with_references() -> None:
    """References are to the function's own schema, whatever else is in the grammar."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/letter"}},
        "required": ["a"],
        "$defs": {"letter": {"enum": ["x", "y"]}},
    }
    compiled = Compiled(Hermes(), "text", functions=[WEATHER, Function(name="f", parameters=schema, strict=True)])
    assert compiled.accepts(written(Hermes(), [("f", '{"a": "x"}')]))
    assert not compiled.accepts(written(Hermes(), [("f", '{"a": "z"}')]))


def test_a_schema_cannot_change_the_grammar() -> None:
    """Neither a schema's text nor its options reach beyond it."""
    schema = {
        "type": "object",
        "description": '"\nstart: "x"\n%json {}',
        "properties": {'"} | "x"': {"type": "integer"}},
        "x-guidance": {"whitespace_flexible": True},
    }
    compiled = Compiled(Hermes(), "text", functions=[Function(name="f", parameters=schema)])
    assert not compiled.accepts("x")
    assert compiled.accepts(written(Hermes(), [("f", json.dumps({'"} | "x"': 1}))]))
    assert not compiled.accepts(written(Hermes(), [("f", "{   }")]))


def test_short_ids() -> None:
    """An id of nine letters and digits stays; any other becomes one, always the same, each its own."""
    assert short_id("abcDEF123") == "abcDEF123"
    made = {short_id(f"call_{number}") for number in range(1000)}
    assert len(made) == 1000
    assert all(len(one) == 9 and one.isascii() and one.isalnum() for one in made)
    assert short_id("call_1") == short_id("call_1")
