"""Where a JSON value that comes in pieces ends, or fails."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.tools.json_value import JsonValue

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def read(text: str, cuts: list[int]) -> tuple[JsonValue, int]:
    """Read a text cut at `cuts`; return the value, and where it stopped in the whole text."""
    value, start = JsonValue(), 0
    for end in [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]:
        at = value.read(text[:end], start)
        if at < end:
            return value, at
        start = end
    return value, start


@given(
    VALUES, st.sampled_from([None, 1]), st.booleans(), st.text(alphabet="},] ", min_size=1), st.lists(st.integers(0))
)
def test_a_value_ends_where_it_ends(value: Any, indent: int | None, escaped: bool, rest: str, cuts: list[int]) -> None:
    """Whatever the value, its spelling, what follows and how it is cut: it is done at its last character."""
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    followed, at = read(text + rest, cuts)
    assert followed.done
    assert not followed.failed
    assert at == len(text)


@given(st.text(alphabet='{}[]",:\\u0a1-e. \ntrue', max_size=30), st.lists(st.integers(0)))
def test_what_python_reads_does_not_fail(text: str, cuts: list[int]) -> None:
    """A text that is JSON is followed to its end, and cuts change nothing about any text."""
    whole, at = read(text, [])
    cut, cut_at = read(text, cuts)
    assert (whole.done, whole.failed, at) == (cut.done, cut.failed, cut_at)
    try:
        json.loads(text)
    except ValueError:
        return
    assert not whole.failed


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("{'a': 1}", 1),
        ('{"a" 1}', 5),
        ('{"a": 1,}', 8),
        ("[1 2]", 3),
        ("[1}", 2),
        ("trua", 3),
        ('"a\nb"', 2),
        (r'"\x"', 2),
        (r'"\u00g0"', 5),
        ("<", 0),
        ("{,", 1),
    ],
)
def test_what_is_no_json_fails_where_it_goes_wrong(text: str, at: int) -> None:
    """The first character that no JSON has there is where it fails."""
    value = JsonValue()
    assert value.read(text, 0) == at
    assert value.failed


def test_depth_needs_no_recursion() -> None:
    """A value that is nested without end is followed as any other."""
    value = JsonValue()
    text = "[" * 100_000 + "]" * 100_000
    assert value.read(text, 0) == len(text)
    assert value.done
