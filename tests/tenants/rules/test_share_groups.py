"""What a share group may be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import Invalid
from tenants.rules.share_groups import FIELDS, GroupFields, changed

ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), ANYTHING, min_size=1, max_size=3))
def test_any_change_is_valid_or_refused_by_field(changes: dict[str, Any]) -> None:
    """Whatever types arrive: the result keeps every rule, or the error names a field of the change."""
    try:
        after = changed(GroupFields(), changes)
    except Invalid as error:
        assert error.field in changes  # noqa: PT017  # which of the two it is depends on the drawn change
        return
    assert 0 <= after.kv_soft_bytes <= after.kv_hard_bytes
    assert after.kv_hard_bytes >= 1
    assert after.description == after.description.strip()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("description", None),
        ("description", "x" * 501),
        ("description", "a\0b"),
        ("description", "\ud800"),
        ("kv_soft_bytes", -1),
        ("kv_soft_bytes", 1.0),
        ("kv_soft_bytes", True),
        ("kv_hard_bytes", 0),
        ("kv_hard_bytes", 2**63),
        ("kv_hard_bytes", "1"),
        ("name", "other"),
        ("version", 7),
        ("removed", True),
    ],
)
def test_a_wrong_value_is_refused_and_named(field: str, value: object) -> None:
    """Range, type and name are checked for each field, and the message begins with it."""
    with pytest.raises(Invalid) as caught:
        changed(GroupFields(), {field: value})
    assert caught.value.field == field
    assert caught.value.message.startswith(field)


def test_soft_above_hard_names_the_field_that_was_changed() -> None:
    """The error points at what the operator typed; both may move in one change."""
    start = GroupFields(kv_soft_bytes=100, kv_hard_bytes=200)
    for changes, field in (({"kv_soft_bytes": 201}, "kv_soft_bytes"), ({"kv_hard_bytes": 99}, "kv_hard_bytes")):
        with pytest.raises(Invalid) as caught:
            changed(start, changes)
        assert caught.value.field == field
    both = changed(start, {"kv_soft_bytes": 500, "kv_hard_bytes": 600})
    assert (both.kv_soft_bytes, both.kv_hard_bytes) == (500, 600)
