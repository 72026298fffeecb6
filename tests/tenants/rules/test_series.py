"""Ranges, steps and Jain's index."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import Invalid
from tenants.rules.series import LONGEST, MOST_POINTS, MOST_STEPS, STEPS, entitled, jain, step_seconds, time_range

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_range_has_usual_ends() -> None:
    """Until now, and an hour long."""
    assert time_range(None, None, NOW) == (NOW - HOUR, NOW)
    assert time_range(None, NOW - HOUR, NOW) == (NOW - 2 * HOUR, NOW - HOUR)
    assert time_range(NOW - 3 * HOUR, None, NOW) == (NOW - 3 * HOUR, NOW)


@pytest.mark.parametrize(
    ("start", "end", "field"),
    [
        (NOW - HOUR, NOW - HOUR, "from"),
        (NOW - HOUR, NOW - 2 * HOUR, "from"),
        (NOW + HOUR, NOW, "to"),
        (NOW - LONGEST - HOUR, NOW, "from"),
    ],
)
def test_a_bad_range_names_its_field(start: datetime, end: datetime, field: str) -> None:
    """Empty, backwards or too long."""
    with pytest.raises(Invalid) as refused:
        time_range(start, end, NOW)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("back", "length", "num_lines", "step"),
    [
        (HOUR, HOUR, 1, 10),
        (6 * HOUR, 6 * HOUR, 1, 60),
        (25 * HOUR, HOUR, 1, 300),
        (24 * HOUR, 24 * HOUR, 1, 300),
        (timedelta(days=90), timedelta(days=90), 1, 6 * 3600),
        (HOUR, HOUR, 100, 60),
    ],
)
def test_steps_are_as_fine_as_the_data_and_the_answer_allow(
    back: timedelta, length: timedelta, num_lines: int, step: int
) -> None:
    """Ten seconds for the last day, five minutes before; coarser for long ranges and many lines."""
    assert step_seconds(NOW - back, NOW - back + length, num_lines, NOW) == step


@given(seconds=st.floats(1, LONGEST.total_seconds()), num_lines=st.integers(0, 50))
def test_an_answer_has_a_bounded_number_of_points(seconds: float, num_lines: int) -> None:
    """Whatever is asked for."""
    step = step_seconds(NOW - timedelta(seconds=seconds), NOW, num_lines, NOW)
    assert step in STEPS
    assert seconds / step <= MOST_STEPS
    assert num_lines * seconds / step <= MOST_POINTS


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20))
def test_jain_lies_between_one_by_n_and_one(shares: list[float]) -> None:
    """One has all, or all have the same; the unit does not matter."""
    index = jain(shares)
    assert index is not None
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9
    assert jain([7 * share for share in shares]) == pytest.approx(index)


def test_jain_of_known_shares() -> None:
    """Nobody, nothing, one of four, all alike, two to one."""
    assert jain([]) is None
    assert jain([0.0, 0.0]) is None
    assert jain([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([3.0] * 7) == pytest.approx(1.0)
    assert jain([2.0, 1.0]) == pytest.approx(0.9)


def test_who_waits_counts_and_who_is_idle_does_not() -> None:
    """Shares are by weight; a tenant that waited in vain has the share of nothing."""
    service = {"a": 20.0, "b": 5.0, "c": 0.0, "d": 0.0}
    weight = {"a": 2.0, "b": 1.0, "c": 1.0, "d": 1.0}
    waited = {"a": False, "b": True, "c": True, "d": False}
    assert entitled(service, weight, waited) == [10.0, 5.0, 0.0]
