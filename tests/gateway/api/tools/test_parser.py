"""Any form's text in, content and calls out."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.tools.forms import Form, Hermes, Llama, Mistral, Named
from gateway.api.tools.parser import MAX_SPACE, Parser
from gateway.api.tools.pieces import Arguments, CallBegun, CallEnded, Content, Piece, whole
from tests.gateway.api.tools.samples import FORMS, NAMES

Calls = list[tuple[str, str]]


def pieces_of(form: Form, text: str, cuts: list[int]) -> list[Piece]:
    """Return what a parser tells of a text that comes in pieces."""
    numbers = itertools.count()
    parser = Parser(form.syntax, NAMES, new_id=lambda: f"call_{next(numbers)}")
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    told = [piece for start, end in itertools.pairwise(edges) for piece in parser.push(text[start:end])]
    return told + parser.flush()


def read(form: Form, text: str, cuts: list[int] | None = None) -> tuple[str | None, Calls]:
    """Return content and calls of a text."""
    told = whole(pieces_of(form, text, cuts or []))
    return told.content, [(call.name, call.arguments) for call in told.calls]


def written(form: Form, calls: Calls) -> str:
    """Return calls as a model writes them in this form."""
    if isinstance(form, Named):
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    if isinstance(form, Llama):
        return "; ".join(f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in calls)
    objects = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls]
    if isinstance(form, Mistral):
        return f"[TOOL_CALLS] [{', '.join(objects)}]"
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["</tool_call>", '"}', "\\", "{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=3).map(json.dumps)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), min_size=1, max_size=3)
CUTS = st.lists(st.integers(0), max_size=12)
FORM = st.sampled_from(list(FORMS.values()))
SHARDS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<tool_",
            "[TOOL_CALLS]",
            "[TOOL",
            "[ARGS]",
            "[CALL_ID]",
            "<|python_tag|>",
            "<|",
        ),
        *("switch", "other", '{"name": "switch", ', '"arguments": {', '"parameters": ', '{"on": true}', '"name": '),
        *("{", "}", "[", "]", '"', "\\", ",", ";", ":", " ", "\n", "\n\n", " " * 40, "a", "é", "null", '"{}"', "1"),
    ]
)
RUBBLE = st.lists(SHARDS | ARGUMENTS | st.text(max_size=3), max_size=25).map("".join)


@given(FORM, CALLS, CUTS)
def test_what_is_written_is_read(form: Form, calls: Calls, cuts: list[int]) -> None:
    """Calls in the model's own form come back, byte for byte, however the text is cut; and no content."""
    assert read(form, written(form, calls), cuts) == (None, calls)


@given(st.sampled_from([Hermes(), Mistral(), Named()]), st.text(min_size=1), CALLS, CUTS)
def test_content_before_calls(form: Form, text: str, calls: Calls, cuts: list[int]) -> None:
    """Text before calls is content, without the white space that separates them."""
    content, found = read(form, text + "\n" + written(form, calls), cuts)
    assert found == calls
    assert content == (text.rstrip() or None)


@given(FORM, RUBBLE, CUTS)
def test_cuts_change_nothing(form: Form, text: str, cuts: list[int]) -> None:
    """Any text, however broken, gives the same content and calls in whatever pieces it comes."""
    assert read(form, text, cuts) == read(form, text)
    assert read(form, text, list(range(len(text)))) == read(form, text)


@given(FORM, RUBBLE, CUTS)
def test_text_without_calls_is_content(form: Form, text: str, cuts: list[int]) -> None:
    """Where nothing is called, the content is the text, and nothing of it is lost or moved."""
    content, calls = read(form, text, cuts)
    assert calls or content == text


@given(FORM, RUBBLE, CUTS)
def test_pieces_of_a_call_are_in_order(form: Form, text: str, cuts: list[int]) -> None:
    """A call begins, then has arguments, then ends, before the next one begins; calls are numbered from 0."""
    expected: int | None = None
    begun = 0
    for piece in pieces_of(form, text, cuts):
        if isinstance(piece, CallBegun):
            assert expected is None
            assert piece.number == begun
            assert piece.name in NAMES
            expected, begun = begun, begun + 1
        elif isinstance(piece, Content):
            assert expected is None
            assert piece.text
        else:
            assert piece.number == expected
            if isinstance(piece, CallEnded):
                expected = None
    assert expected is None


@given(FORM, st.text(alphabet=st.characters(exclude_characters="<[{"), min_size=1))
def test_plain_text_is_not_held_back(form: Form, text: str) -> None:
    """Text in which no marker may begin is told at once, but for the white space at its end."""
    parser = Parser(form.syntax, NAMES)
    told = whole(parser.push(text)).content
    assert told in (text, text.rstrip())


def test_arguments_are_told_as_they_come() -> None:
    """A name is told when the arguments begin, and each piece of them with the text that has it."""
    parser = Parser(Hermes().syntax, NAMES, new_id=lambda: "call_1")
    steps = ["Well\n<tool_call>\n", '{"name": "switch", "arg', 'uments": ', '{"on"', ": true", "}", "}\n</tool_call>"]
    assert [parser.push(step) for step in steps] == [
        [Content("Well")],
        [],
        [],
        [CallBegun(0, "call_1", "switch"), Arguments(0, '{"on"')],
        [Arguments(0, ": true")],
        [Arguments(0, "}")],
        [CallEnded(0)],
    ]
    assert parser.flush() == []


@given(FORM, CALLS, st.integers(0), CUTS)
def test_calls_alone(form: Form, calls: Calls, end: int, cuts: list[int]) -> None:
    """An output that must be calls has no content, wherever it is cut off; what has begun of a call is told."""
    text = written(form, calls)
    text = text[: end % (len(text) + 1)]
    parser = Parser(form.syntax, NAMES, only_calls=True)
    told = whole([*parser.push(text), *parser.flush()])
    assert not told.content
    for call, (name, arguments) in zip(told.calls, calls, strict=False):
        assert call.name == name
        assert arguments.startswith(call.arguments)


@pytest.mark.parametrize("marker", ["<tool_call>", "</tool_call>"])
def test_a_marker_is_never_told_in_part(marker: str) -> None:
    """What may become a marker waits, and is content as soon as it becomes something else."""
    parser = Parser(Hermes().syntax, NAMES)
    assert parser.push(f"so {marker[:-1]}") == [Content("so")]
    assert parser.push("!") == [Content(f" {marker[:-1]}!")]


OBJECT = '{"name": "switch", "arguments": {"on": true}}'
ONE: Calls = [("switch", '{"on": true}')]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>{OBJECT}</tool_call>", None, ONE),
        (f"<tool_call>\n{OBJECT}", None, ONE),  # the end of the output ends it
        (f"<tool_call>{OBJECT}\n<tool_call>{OBJECT}", None, ONE * 2),
        (f"<tool_call>[{OBJECT}, {OBJECT}]</tool_call>", None, ONE * 2),
        (f"<tool_call>{OBJECT}}}</tool_call>", None, ONE),  # a brace too many
        (f"\n\n<tool_call>{OBJECT}</tool_call>\n", None, ONE),
        (f"a\n<tool_call>{OBJECT}</tool_call>\nb", "a\nb", ONE),
        (f"<tool_call>{OBJECT} and so</tool_call>", "and so", ONE),
        ('<tool_call>{"arguments": {"on": true}, "name": "switch"}</tool_call>', None, ONE),
        ('<tool_call>{"id": 7, "name": "switch", "parameters": {"on": true}, "x": []}</tool_call>', None, ONE),
        ('<tool_call>{"name": "switch", "arguments": "{\\"on\\": true}"}</tool_call>', None, ONE),
        ('<tool_call>{"name": "no-thing"}</tool_call>', None, [("no-thing", "{}")]),
        ('<tool_call>{"name": "no-thing", "arguments": null}</tool_call>', None, [("no-thing", "{}")]),
    ],
)
def test_calls_as_models_write_them(text: str, content: str | None, calls: Calls) -> None:
    """Slips that leave no doubt about what is called are passed over."""
    assert read(Hermes(), text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "switch", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "switch", "arguments": "on"}</tool_call>',
        '<tool_call>{"name": "switch"',
        '<tool_call>{"name": "switch", "name": "switch", "arguments": {}}</tool_call>',
        '<tool_call>{"name": ["switch"], "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": ' + "[" * 5000 + "]" * 5000 + "}</tool_call>",
        "Write <tool_call> and </tool_call> around it.",
        OBJECT,
        f"[TOOL_CALLS] [{OBJECT}]",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    """An unknown function, a call without a name, arguments that are no object, and talk of markers, are content."""
    assert read(Hermes(), text) == (text, [])


def test_a_call_follows_what_looked_like_one() -> None:
    """Text that turns out to be no call is read again: a call may stand in it."""
    text = f'<tool_call>{{"name": "<tool_call>{OBJECT}</tool_call>'
    assert read(Hermes(), text) == ('<tool_call>{"name": "', ONE)


@pytest.mark.parametrize(
    ("text", "arguments", "content"),
    [
        ("{\"on\": 'yes'}}\n</tool_call> so", "{\"on\": 'yes'}}", "so"),
        ('{"on": tr', '{"on": tr', None),
        ('{"on": oops <tool_', '{"on": oops <tool_', None),
    ],
)
def test_broken_arguments_are_arguments(text: str, arguments: str, content: str | None) -> None:
    """Arguments that have begun and are no JSON, or are cut off, go to the closing tag, or to the end."""
    assert read(Hermes(), f'<tool_call>{{"name": "switch", "arguments": {text}') == (content, [("switch", arguments)])


def test_a_call_after_broken_arguments() -> None:
    """The next marker ends arguments that are no JSON."""
    text = f'<tool_call>{{"name": "switch", "arguments": {{oops\n<tool_call>{OBJECT}</tool_call>'
    assert read(Hermes(), text) == (None, [("switch", "{oops"), *ONE])


LLAMA_OBJECT = '{"name": "switch", "parameters": {"on": true}}'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (LLAMA_OBJECT, None, ONE),
        (f"\n\n{LLAMA_OBJECT}; {LLAMA_OBJECT}", None, ONE * 2),
        (f"[{LLAMA_OBJECT}, {LLAMA_OBJECT}]", None, ONE * 2),
        (f"<|python_tag|>{LLAMA_OBJECT}", None, ONE),
        (f"Sure.<|python_tag|>{LLAMA_OBJECT}", "Sure.", ONE),
        ('{"type": "function", "name": "switch", "parameters": {"on": true}}', None, ONE),
        (f"Sure: {LLAMA_OBJECT}", f"Sure: {LLAMA_OBJECT}", []),
        ('{"town": "Rome"}', '{"town": "Rome"}', []),
        (f'{LLAMA_OBJECT}; {{"a": 1}}', '; {"a": 1}', ONE),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ],
)
def test_llama(text: str, content: str | None, calls: Calls) -> None:
    """Objects at the beginning, or behind the tag, are calls; objects elsewhere are content."""
    assert read(Llama(), text) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"[TOOL_CALLS] [{OBJECT}]", None, ONE),
        (f"[TOOL_CALLS][{OBJECT}, {OBJECT}]", None, ONE * 2),
        (f"I look. [TOOL_CALLS] [{OBJECT}]", "I look.", ONE),
        ('[TOOL_CALLS] [{"name": "switch", "arguments": {"on": true}, "id": "abc123def"}]', None, ONE),
        ("[TOOL_CALLS] []", "[TOOL_CALLS] []", []),
        ("[TOOL_CALL] [1]", "[TOOL_CALL] [1]", []),
    ],
)
def test_mistral(text: str, content: str | None, calls: Calls) -> None:
    """A list behind the marker has calls."""
    assert read(Mistral(), text) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('[TOOL_CALLS]switch[ARGS]{"on": true}', None, ONE),
        ('[TOOL_CALLS]switch{"on": true}[TOOL_CALLS]switch[CALL_ID]123456789[ARGS]{"on": true}', None, ONE * 2),
        ("[TOOL_CALLS]other[ARGS]{}", "[TOOL_CALLS]other[ARGS]{}", []),
        ("[TOOL_CALLS]switch[ARGS]", "[TOOL_CALLS]switch[ARGS]", []),
        ("[TOOL_CALLS]" + "switch " * 99 + "{}", "[TOOL_CALLS]" + "switch " * 99 + "{}", []),
        ('[TOOL_CALLS]switch[ARGS]{"on": ture}', None, [("switch", '{"on": ture}')]),
    ],
)
def test_named(text: str, content: str | None, calls: Calls) -> None:
    """A name behind the marker, then arguments, is a call."""
    assert read(Named(), text) == (content, calls)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_white_space_is_not_held_for_ever(form: Form) -> None:
    """A long run of white space is told as it comes, and is content wherever it stands."""
    parser = Parser(form.syntax, NAMES)
    assert parser.push("\n" * MAX_SPACE) == []
    assert parser.push("\n") == [Content("\n" * (MAX_SPACE + 1))]
    assert parser.push("\n") == [Content("\n")]


def test_ids_differ() -> None:
    """Each call has an id of its own, of the kind that clients know."""
    parser = Parser(Hermes().syntax, NAMES)
    told = whole([*parser.push(f"<tool_call>{OBJECT}</tool_call>" * 3), *parser.flush()])
    assert len({call.id for call in told.calls}) == 3
    assert all(call.id.startswith("call_") for call in told.calls)
