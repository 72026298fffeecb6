"""Readings of a worker become rows of ten seconds: differences of counters, nothing twice, nothing invented."""

from typing import Any

import pytest

from gateway.controller.tally import LATE_SECONDS, Tally
from tenants.reports import (
    InterferencePair,
    Pressure,
    SeriesBucket,
    SeriesCounters,
    TenantCounters,
    TenantUse,
    WorkerStats,
)

START = 1_900_000_000.0


def use(tenant_id: str = "t", kv_bytes: int = 100, **more: Any) -> TenantUse:
    """One tenant's use."""
    usual: dict[str, Any] = {"kv_peak_bytes": kv_bytes, "running": 1, "queued": 0, "output_tokens_per_second": 0.0}
    return TenantUse(tenant_id=tenant_id, kv_bytes=kv_bytes, **usual | more)


def pair(count: int, by: str = "a", of: str = "b") -> InterferencePair:
    """A pair that has cost so many cached blocks."""
    return InterferencePair(by=by, of=of, cached_blocks=count)


def stats(*tenants: TenantUse, core: float = START, **more: Any) -> WorkerStats:
    """One worker's statistics."""
    usual: dict[str, Any] = {
        "at": 0.0,
        "core_ready": True,
        "applied_version": 1,
        "blocks_total": 10,
        "blocks_free": 4,
        "blocks_cached": 1,
        "block_bytes": 10,
        "running": 1,
        "queued": 0,
        "prompt_tokens_per_second": 0.0,
        "output_tokens_per_second": 0.0,
        "num_preemptions": 0,
    }
    return WorkerStats(worker_id="w", tenants=tenants, core_started_at=core, **usual | more)


def closed(tally: Tally, now: float) -> SeriesBucket:
    """The bucket that is over by now."""
    bucket = tally.close(now)
    assert bucket is not None
    return bucket


def test_a_bucket_has_means_peaks_and_gains() -> None:
    """Over all readings of the worker: in one where a tenant was not there it held nothing."""
    tally = Tally("w")
    first = use(kv_bytes=100, service=5.0, output_tokens=1, queued=2, oldest_wait_seconds=3.0)
    tally.add(stats(first, pressure=Pressure(score=0.2, use=1.0)), START + 1)
    later = use(kv_bytes=300, kv_peak_bytes=500, service=25.0, output_tokens=9, weight=2.0)
    tally.add(stats(later, pressure=Pressure(score=0.6)), START + 1.25)
    tally.add(stats(), START + 1.5)
    assert tally.close(START + 9.9) is None
    bucket = closed(tally, START + 10)
    assert (bucket.at, bucket.covered, bucket.worker_id) == (START, 0.75, "w")
    (reading,) = bucket.tenants
    assert (reading.kv_bytes, reading.kv_peak_bytes, reading.weight) == (pytest.approx(400 / 3), 500, 2.0)
    assert (reading.running, reading.queued) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert reading.oldest_wait_seconds == 3.0
    assert (reading.gained.service, reading.gained.output_tokens) == (25.0, 9)
    assert bucket.pressure.mean == Pressure(score=pytest.approx(0.8 / 3), use=pytest.approx(1 / 3))
    assert (bucket.pressure.score_peak, bucket.pressure.pool_use) == (0.6, pytest.approx(0.5))
    assert tally.close(START + 20) is None


def test_counters_become_differences_across_buckets() -> None:
    """Each token is in one bucket."""
    tally = Tally("w")
    gained = []
    for second in range(40):
        bucket = tally.close(START + second)
        gained += [bucket] if bucket else []
        tally.add(stats(use(service=7.0 * second), interference=(pair(second + 1),)), START + second)
    assert [bucket.tenants[0].gained.service for bucket in gained] == [63.0, 70.0, 70.0]
    assert [bucket.interference[0].cached_blocks for bucket in gained] == [10, 10, 10]


def test_idle_tenants_have_no_reading() -> None:
    """Holding a cache is idle, above the soft limit or not; a quiet worker still tells its pressure."""
    tally = Tally("w")
    for quarter in range(8):
        idle = use(running=0, kv_cached_bytes=100, above_soft_seconds=quarter / 4)
        tally.add(stats(idle, use("none", 0, running=0)), START + quarter / 4)
    bucket = closed(tally, START + 10)
    assert (bucket.tenants, bucket.interference) == ((), ())
    assert bucket.covered == pytest.approx(2.0)


def test_a_new_core_starts_anew() -> None:
    """What the old one counted stays counted, and the new one's counts are all news."""
    tally = Tally("w")
    tally.add(stats(use(service=50.0), interference=(pair(5),)), START)
    tally.add(stats(core=0.0, core_ready=False), START + 1)
    tally.add(stats(use(service=8.0), core=START + 2, interference=(pair(2),)), START + 2)
    tally.add(stats(use(service=9.0), core=START + 2, interference=()), START + 3)
    bucket = closed(tally, START + 10)
    assert bucket.tenants[0].gained.service == 59.0
    assert bucket.interference[0].cached_blocks == 7
    assert bucket.counters.core_started_at == START + 2


def test_a_reconnect_counts_nothing_twice() -> None:
    """Complete statistics tell old counts again; what happened while nobody listened is counted."""
    tally = Tally("w")
    tally.add(stats(use(service=50.0), interference=(pair(5), pair(9, "c", "d"))), START)
    tally.reconnected()
    tally.add(stats(use(service=60.0), interference=(pair(6), pair(9, "c", "d"))), START + 5)
    bucket = closed(tally, START + 10)
    assert bucket.tenants[0].gained.service == 60.0
    assert {one.by: one.cached_blocks for one in bucket.interference} == {"a": 6, "c": 9}


def test_pairs_that_complete_statistics_do_not_have_are_forgotten() -> None:
    """A tenant left and came back while nobody listened: its counts are from zero."""
    tally = Tally("w")
    tally.add(stats(interference=(pair(5),)), START)
    tally.reconnected()
    tally.add(stats(interference=()), START + 1)
    tally.add(stats(interference=(pair(7),)), START + 2)
    assert closed(tally, START + 10).interference[0].cached_blocks == 12


def test_a_forgotten_pair_counts_from_zero() -> None:
    """Zeros are the last news of a pair."""
    tally = Tally("w")
    for count in (5, 0, 7):
        tally.add(stats(interference=(pair(count),)), START)
    assert closed(tally, START + 10).interference[0].cached_blocks == 12


def test_a_tenant_that_left_and_came_back_counts_from_zero() -> None:
    """Whether it was missed in between or its counters have fallen."""
    tally = Tally("w")
    for service in (10.0, None, 30.0, 4.0):
        tally.add(stats(*([] if service is None else [use(service=service)])), START)
    assert closed(tally, START + 10).tenants[0].gained.service == 44.0


def counters(core: float, service: float, count: int) -> SeriesCounters:
    """What a mark holds."""
    return SeriesCounters(core_started_at=core, tenants={"t": TenantCounters(service=service)}, pairs=(pair(count),))


def test_a_successor_goes_on_from_the_mark() -> None:
    """What happened since the last row is counted once, by whoever hears of it."""
    first = Tally("w")
    first.add(stats(use(service=10.0), interference=(pair(3),)), START)
    bucket = closed(first, START + 10)
    first.add(stats(use(service=20.0), interference=(pair(4),)), START + 10)
    second = Tally("w", (bucket.at + 10, bucket.counters))
    second.add(stats(use(service=25.0), interference=(pair(6),)), START + 22)
    later = closed(second, START + 30)
    assert (later.tenants[0].gained.service, later.interference[0].cached_blocks) == (15.0, 3)


@pytest.mark.parametrize(
    ("mark", "core", "expected"),
    [
        (None, START - 60, 50.0),  # a young core: all of it is news
        (None, START - 2 * LATE_SECONDS, 0.0),  # an old one of which nothing is known
        (counters(START - 900, 20.0, 1), START - 900, 0.0),  # silent for too long
        (counters(START - 900, 20.0, 1), START - 30, 50.0),  # and then a new one
    ],
)
def test_what_went_unheard_for_long_is_a_gap(mark: SeriesCounters | None, core: float, expected: float) -> None:
    """An hour's work must not show as ten seconds'; from then on everything counts."""
    tally = Tally("w", None if mark is None else (START - LATE_SECONDS - 1, mark))
    tally.add(stats(use(service=50.0), core=core, interference=(pair(9),)), START)
    tally.add(stats(use(service=51.0), core=core, interference=(pair(10),)), START + 1)
    bucket = closed(tally, START + 10)
    assert bucket.tenants[0].gained.service == expected + 1
    assert bucket.interference[0].cached_blocks == (10 if expected else 1)


def test_a_clock_that_is_set_back_makes_no_second_bucket() -> None:
    """Readings go on into the open one until its time is over again."""
    tally = Tally("w")
    tally.add(stats(use(service=1.0)), START + 5)
    tally.add(stats(use(service=2.0)), START - 30)
    assert tally.close(START - 30) is None
    bucket = closed(tally, START + 10)
    assert (bucket.at, bucket.tenants[0].gained.service) == (START, 2.0)
    assert 0 < bucket.covered <= 10
