"""A disk is left alone when it fails too often, longer each time."""

from engine.disk.breaker import Breaker


def test_four_failures_in_a_row_trip_it() -> None:
    """Not three."""
    breaker = Breaker(1.0)
    assert [breaker.failed() for _ in range(4)] == [False, False, False, True]


def test_one_failure_in_five_is_borne() -> None:
    """For as long as it goes on; one in four is not."""
    for good, trips in ((4, False), (3, True)):
        breaker = Breaker(1.0)
        tripped = False
        for _ in range(200):
            tripped = tripped or breaker.failed()
            for _ in range(good):
                breaker.succeeded()
        assert tripped == trips


def test_it_waits_twice_as_long_each_time_up_to_a_minute() -> None:
    """From the first wait on."""
    breaker, now, waits = Breaker(1.0), 1000.0, []
    for _ in range(9):
        breaker.trip(now)
        wait = next(seconds for seconds in range(100) if breaker.may_retry(now + seconds))
        waits.append(wait)
        now += wait
        breaker.recovered(now)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_long_good_time_is_a_new_beginning() -> None:
    """The wait is short again, and so many failures are needed as at first."""
    breaker = Breaker(1.0)
    for now in (1000.0, 1010.0, 1020.0):
        breaker.failed()
        breaker.trip(now)
        breaker.recovered(now + 5)
    assert not breaker.failed()
    breaker.trip(2000.0)
    assert not breaker.may_retry(2000.9)
    assert breaker.may_retry(2001.0)
