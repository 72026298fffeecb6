"""What a policy may be."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import PolicyInvalid
from tenants.rules.policy import DEFAULT, FIELDS, LEAST_WEIGHT, changed, check_guarantees

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), ANYTHING, min_size=1, max_size=4))
def test_any_change_is_valid_or_refused_by_field(changes: dict[str, Any]) -> None:
    """Whatever types arrive: the result keeps every rule, or the error names a field of the change."""
    try:
        after = changed(DEFAULT, changes)
    except PolicyInvalid as error:
        named = error.field if error.field in changes else error.field.partition(".")[0]  # of a limit on trial
        assert named in changes  # which of the two it is depends on the drawn change
        return
    assert 0 <= after.kv_soft_bytes <= after.kv_hard_bytes
    assert LEAST_WEIGHT <= after.weight <= 1000
    assert after.max_running >= 1
    assert all(type(getattr(after, name)) is type(getattr(DEFAULT, name)) for name in FIELDS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", 0),
        ("weight", 1e-320),
        ("weight", 0.00099),
        ("weight", -1.0),
        ("weight", math.nan),
        ("weight", math.inf),
        ("weight", True),
        ("weight", "2"),
        ("kv_hard_bytes", 0),
        ("kv_hard_bytes", 2**63),
        ("kv_hard_bytes", 1.0),
        ("kv_soft_bytes", -1),
        ("max_running", 0),
        ("max_running", True),
        ("rpm", -1),
        ("rpm", 2**31),
        ("max_context", 0),
        ("priority", "urgent"),
        ("priority", None),
        ("share_group", None),
        ("share_group", ["docs"]),
        ("share_group", "x" * 41),
        ("share_group", "a\0"),
        ("version", 7),
        ("nonsense", 1),
    ],
)
def test_a_wrong_value_is_refused_and_named(field: str, value: object) -> None:
    """Range, type and name are checked for each field, and the message begins with it."""
    with pytest.raises(PolicyInvalid) as caught:
        changed(DEFAULT, {field: value})
    assert caught.value.field == field
    assert caught.value.message.startswith(field)


def test_soft_above_hard_names_the_field_that_was_changed() -> None:
    """The error points at what the operator typed."""
    start = msgspec.structs.replace(DEFAULT, kv_soft_bytes=100, kv_hard_bytes=200)
    for changes, field in (({"kv_soft_bytes": 201}, "kv_soft_bytes"), ({"kv_hard_bytes": 99}, "kv_hard_bytes")):
        with pytest.raises(PolicyInvalid) as caught:
            changed(start, changes)
        assert caught.value.field == field
    both = changed(start, {"kv_soft_bytes": 500, "kv_hard_bytes": 600})
    assert (both.kv_soft_bytes, both.kv_hard_bytes) == (500, 600)


def test_guarantees_fit_under_the_low_watermark() -> None:
    """The sum of soft limits reaches 0.90 of the pool and no more."""
    check_guarantees(before=0, after=400, others=500, pool=1000)
    with pytest.raises(PolicyInvalid, match="leaves 400"):
        check_guarantees(before=0, after=401, others=500, pool=1000)


def test_a_guarantee_that_does_not_rise_is_never_refused() -> None:
    """After a worker has gone an operator can still lower limits, or leave them."""
    check_guarantees(before=700, after=650, others=900, pool=1000)
    check_guarantees(before=700, after=700, others=900, pool=1000)


def test_without_a_worker_nothing_is_said() -> None:
    """Tenants can be set up before the first worker announces itself."""
    check_guarantees(before=0, after=10**15, others=0, pool=0)
