"""What a registered prefix may be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.contracts import PrefixMessage
from tenants.errors import Invalid
from tenants.rules.prefixes import MOST_BYTES, MOST_MESSAGES, contents, name

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content"]) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@given(ANYTHING, ANYTHING)
def test_anything_is_valid_or_refused_by_field(messages: Any, text: Any) -> None:
    """Whatever arrives: it is one of the two, whole and bounded, or the error names the field."""
    try:
        found = contents(messages, text)
    except Invalid as error:
        assert error.field.split(".")[0] in ("messages", "text")  # noqa: PT017  # either, depending on what was drawn
        return
    assert bool(found.messages) != bool(found.text)
    assert 1 <= found.num_bytes <= MOST_BYTES


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40))
def test_what_is_registered_is_kept_to_the_character(text: str) -> None:
    """Blanks, line ends and combining characters count: a request shares exact beginnings alone."""
    assert contents((), text).text == text
    message = PrefixMessage(role="user", content=text)
    assert contents([message], "").messages == (message,)
    assert contents([{"role": "user", "content": text}], "") == contents((message,), "")
    assert contents((), text).num_bytes == len(text.encode())


@pytest.mark.parametrize(
    ("field", "messages", "text"),
    [
        ("messages", [], ""),
        ("messages", CHAT, "both"),
        ("messages", None, ""),
        ("messages", "text", ""),
        ("messages", {"role": "user", "content": "x"}, ""),
        ("messages", [CHAT[0]] * (MOST_MESSAGES + 1), ""),
        ("messages.0", ["x"], ""),
        ("messages.1", [CHAT[0], None], ""),
        ("messages.0.role", [{"content": "x"}], ""),
        ("messages.0.role", [{"role": "tool", "content": "x"}], ""),
        ("messages.0.role", [{"role": ["user"], "content": "x"}], ""),
        ("messages.1.content", [CHAT[0], {"role": "user"}], ""),
        ("messages.0.content", [{"role": "user", "content": ""}], ""),
        ("messages.0.content", [{"role": "user", "content": [{"type": "text", "text": "x"}]}], ""),
        ("messages.0.content", [{"role": "user", "content": "a\0b"}], ""),
        ("messages.0.content", [{"role": "user", "content": "a\ud800"}], ""),
        ("messages.0.naem", [{"role": "user", "content": "x", "naem": "y"}], ""),
        ("text", (), None),
        ("text", (), 7),
        ("text", (), "a\0"),
        ("text", (), "\udfff"),
        ("text", CHAT, None),
    ],
)
def test_a_wrong_value_is_refused_and_named(field: str, messages: Any, text: Any) -> None:
    """The error names the message and the field in it, and what it should be."""
    with pytest.raises(Invalid) as caught:
        contents(messages, text)
    assert caught.value.field == field


@pytest.mark.parametrize("character", ["x", "é", "€", "😀"])
def test_the_size_is_counted_in_bytes_of_utf_8(character: str) -> None:
    """256 KiB fit to the byte, as a text and over all messages; more does not."""
    most = MOST_BYTES // len(character.encode())
    assert contents((), character * most).num_bytes <= MOST_BYTES
    half = {"role": "user", "content": character * (most // 2)}
    assert contents([half, half], "").num_bytes <= MOST_BYTES
    with pytest.raises(Invalid, match="262144") as caught:
        contents((), character * (most + 1))
    assert caught.value.field == "text"
    with pytest.raises(Invalid, match="262144") as caught:
        contents([half, half, {"role": "user", "content": character * 2}], "")
    assert caught.value.field == "messages"


def test_as_many_messages_as_allowed_are_taken() -> None:
    """64 of them."""
    assert len(contents([CHAT[0]] * MOST_MESSAGES, "").messages) == MOST_MESSAGES


def test_an_error_never_repeats_the_contents() -> None:
    """Errors go to logs and pages; contents do not."""
    for messages, text in (([{"role": "user", "content": "secret\0"}], ""), ((), "secret\ud800"), (CHAT, "secret")):
        with pytest.raises(Invalid) as caught:
            contents(messages, text)
        assert "secret" not in caught.value.message


def test_the_digest_tells_contents_apart() -> None:
    """The same contents have the same one; a role, a border between messages, a kind make another."""
    one = {"role": "user", "content": "ab"}
    different = [
        contents([one], ""),
        contents([one | {"role": "assistant"}], ""),
        contents([one | {"content": "a"}, one | {"content": "b"}], ""),
        contents((), "ab"),
    ]
    assert len({found.sha256 for found in different}) == len(different)
    assert contents([one], "").sha256 == contents([PrefixMessage("user", "ab")], "").sha256


@pytest.mark.parametrize("value", ["", "  ", "x" * 81, "a\nb", "\ud800", None, 7, ["x"]])
def test_a_name_has_1_to_80_characters(value: object) -> None:
    """Anything else is refused."""
    with pytest.raises(Invalid) as caught:
        name(value)
    assert caught.value.field == "name"
    assert name(" Support handbook ") == "Support handbook"
