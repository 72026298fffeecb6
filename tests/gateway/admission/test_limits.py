"""Token buckets over a clock that is a number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.limits import Bucket, duration, slice_size, wait_seconds


@given(
    capacity=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), max_size=60),
)
def test_bucket_never_gives_more_than_it_got(capacity: int, steps: list[tuple[float, int]]) -> None:
    """Over any time what was taken is at most one capacity and what flowed in."""
    bucket, now, taken = Bucket(capacity, capacity, 0.0), 0.0, 0
    for pause, wanted in steps:
        now += pause
        taken += wanted if bucket.take(wanted, now) else 0
        assert taken <= capacity + now * capacity / 60 + 1e-6


def test_debt_is_paid_first() -> None:
    """A bucket in debt gives nothing until the debt has flowed in."""
    bucket = Bucket(60, -10, 0.0)
    assert not bucket.take(1, 10.5)
    assert bucket.take(1, 11.1)


def test_wait_is_enough() -> None:
    """After the wait the take succeeds, shortly before it doesn't."""
    bucket = Bucket(30, 3.0, 0.0)
    wait = wait_seconds(10, 3.0, 30)
    assert not bucket.take(10, wait - 0.01)
    assert bucket.take(10, wait + 0.01)


@given(st.floats(1, 1e6), st.integers(1, 10**7), st.integers(1, 64))
def test_slice_covers_what_is_wanted(wanted: float, limit: int, processes: int) -> None:
    """A slice is at least what is wanted; what is ahead is at most a quarter of an even share."""
    size = slice_size(wanted, limit, processes)
    assert size >= wanted
    assert size == wanted or size <= limit / (4 * processes)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0124, "12ms"), (1.5, "1.5s"), (59, "59s"), (60, "1m0s"), (360, "6m0s"), (61.25, "1m1.25s")],
)
def test_duration(seconds: float, text: str) -> None:
    """Durations are written as OpenAI's headers write them."""
    assert duration(seconds) == text
