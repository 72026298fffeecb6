"""Who may touch a caller's memory."""

from engine.disk.figures import Tally
from engine.disk.orders import Claim


def test_memory_that_a_thread_has_not_taken_is_its_callers() -> None:
    """And stays so: the thread comes too late, as often as it is asked."""
    claim = Claim()
    assert claim.cancel()
    assert not claim.take()
    assert claim.cancel()


def test_memory_that_a_thread_is_at_is_nobody_elses() -> None:
    """Until it has finished."""
    claim = Claim()
    assert claim.take()
    assert not claim.cancel()
    assert not claim.take()
    claim.finished = True
    assert claim.cancel()


def test_latencies_are_counted_as_they_are_reported() -> None:
    """In buckets, their upper bounds included."""
    tally = Tally()
    for seconds in (0.0, 0.001, 0.0011, 0.2, 5.0, 5.1, 100.0):
        tally.add(10, seconds)
    assert tally.read().latencies == (2, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2)
    assert tally.read().num_bytes == 70
