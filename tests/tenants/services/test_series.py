"""Writes of the time series: each reading once, whoever writes it and however often; coarser with age."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from tenants.models import InterferenceSample, PressureSample, SeriesMark, TenantSample
from tenants.reports import (
    InterferencePair,
    Pressure,
    PressureReading,
    SeriesBucket,
    SeriesCounters,
    TenantCounters,
    TenantReading,
)
from tenants.services.series import claim_marks, record, roll_up, sweep

TENANT = str(uuid.UUID(int=7))
AT = 1_900_000_000.0


def reading(tenant_id: str = TENANT, *, kv_bytes: float = 100.0, service: float = 5.0, **more: Any) -> TenantReading:
    """What one tenant used."""
    usual: dict[str, Any] = {
        "weight": 1.0,
        "kv_cached_bytes": 0.0,
        "kv_borrowed_bytes": 0.0,
        "kv_peak_bytes": 200,
        "running": 1.0,
        "queued": 0.0,
        "oldest_wait_seconds": 0.0,
        "gained": TenantCounters(service=service, output_tokens=2),
    }
    return TenantReading(tenant_id=tenant_id, kv_bytes=kv_bytes, **usual | more)


def bucket(at: float = AT, *tenants: TenantReading, worker_id: str = "w-0", **more: Any) -> SeriesBucket:
    """What one worker's statistics came to."""
    usual: dict[str, Any] = {
        "covered": 10.0,
        "pressure": PressureReading(mean=Pressure(score=0.5), score_peak=0.75, pool_use=0.25),
        "interference": (InterferencePair(by="a", of="b", cached_blocks=3, recomputed_tokens=40),),
        "counters": SeriesCounters(core_started_at=1.0, tenants={}, pairs=()),
    }
    return SeriesBucket(worker_id=worker_id, at=at, tenants=tenants or (reading(),), **usual | more)


def samples() -> list[TenantSample]:
    """All rows of tenants, oldest first."""
    return list(TenantSample.objects.across_tenants().order_by("at"))


def test_a_bucket_written_twice_counts_once(db: None) -> None:
    """A commit whose answer was lost is repeated: the rows are replaced."""
    for _ in range(2):
        assert record(bucket(), term=1)
    (sample,) = samples()
    assert (sample.at, sample.seconds, sample.covered) == (datetime.fromtimestamp(AT, UTC), 10, 10.0)
    assert (sample.kv_bytes, sample.kv_peak_bytes, sample.service, sample.output_tokens) == (100.0, 200, 5.0, 2)
    assert PressureSample.objects.get().score_peak == 0.75
    pair = InterferenceSample.objects.across_tenants().get()
    assert (pair.by, pair.of, pair.cached_blocks, pair.recomputed_tokens) == ("a", "b", 3, 40)


def test_an_older_leader_writes_nothing_after_a_newer_one_has_begun(db: None) -> None:
    """Claiming the marks is what ends the older one's right, whether the newer one has written anything or not."""
    counters = SeriesCounters(core_started_at=9.5, tenants={TENANT: TenantCounters(1.5, 2.5, 3, 4, 5)}, pairs=())
    assert record(bucket(counters=counters), term=1)
    assert claim_marks(term=2) == {"w-0": (AT + 10, counters)}
    assert not record(bucket(AT + 10), term=1)
    assert record(bucket(AT + 20), term=2)
    assert [sample.at.timestamp() for sample in samples()] == [AT, AT + 20]


def test_a_name_that_is_no_tenants_is_left_out(db: None) -> None:
    """A worker may serve names that are not ours; what is ours is written, whatever its text."""
    strange = InterferencePair(by="x\0" + "y" * 500, of="group:bank", num_preemptions=1)
    assert record(bucket(AT, reading("nobody"), reading(), interference=(strange,)), term=1)
    assert [str(sample.tenant_id) for sample in samples()] == [TENANT]
    assert InterferenceSample.objects.across_tenants().get().by == "x" + "y" * 119


def test_readings_that_no_column_holds_are_made_to_fit(db: None) -> None:
    """A broken worker's figures stop nobody's series: not a number, below nothing, beyond all bounds, twice."""
    broken = reading(kv_bytes=float("nan"), queued=-3.0, service=float("inf"), kv_peak_bytes=1 << 80)
    twice = tuple(InterferencePair(by="x" * 200 + end, of="b", cached_blocks=1 << 70) for end in "12")
    one = bucket(AT, broken, reading(TENANT.upper()), interference=twice, covered=0.0)
    assert record(one, term=1)
    assert [sample.covered for sample in samples()] == [0.01]
    assert record(bucket(AT, broken), term=1)
    (sample,) = samples()
    assert (sample.kv_bytes, sample.queued, sample.service) == (0.0, 0.0, 0.0)
    assert InterferenceSample.objects.across_tenants().get(by="x" * 120).cached_blocks == sample.kv_peak_bytes > 1 << 39


def test_rows_of_a_day_ago_become_rows_of_five_minutes(db: None) -> None:
    """Sums stay, means are weighed by the time that they stand for, peaks are the highest; a second run finds none."""
    start = (timezone.now().timestamp() - 25 * 3600) // 300 * 300
    for n in range(35):
        covered = 10.0 if n % 2 else 2.5
        one = reading(kv_bytes=100.0 + n, service=1.0, kv_peak_bytes=n)
        assert record(bucket(start + 10 * n, one, covered=covered), term=1)
    assert record(bucket(timezone.now().timestamp() // 10 * 10), term=1)
    assert roll_up() == 3 * 35
    first, second, fresh = samples()
    assert [sample.seconds for sample in (first, second, fresh)] == [300, 300, 10]
    assert (first.at.timestamp(), second.at.timestamp()) == (start, start + 300)
    assert (first.service, second.service, first.output_tokens, first.kv_peak_bytes) == (30.0, 5.0, 60, 29)
    covered = sum(10.0 if n % 2 else 2.5 for n in range(30))
    weighed = sum((100.0 + n) * (10.0 if n % 2 else 2.5) for n in range(30))
    assert first.covered == pytest.approx(covered)
    assert first.kv_bytes == pytest.approx(weighed / covered)
    coarse = PressureSample.objects.order_by("at").first()
    assert coarse is not None and (coarse.seconds, coarse.score, coarse.score_peak) == (300, 0.5, 0.75)
    assert [pair.cached_blocks for pair in InterferenceSample.objects.across_tenants().order_by("at")] == [90, 15, 3]
    assert roll_up() == 0


def test_a_row_that_comes_late_is_merged_into_the_coarse_one(db: None) -> None:
    """A controller that waited for Postgres writes what was rolled up meanwhile."""
    start = (timezone.now().timestamp() - 30 * 3600) // 300 * 300
    record(bucket(start, reading(kv_bytes=100.0)), term=1)
    roll_up()
    record(bucket(start + 10, reading(kv_bytes=400.0), covered=5.0), term=1)
    assert roll_up() == 3
    (sample,) = samples()
    assert (sample.covered, sample.service, sample.kv_bytes) == (15.0, 10.0, pytest.approx(200.0))


def test_two_roll_ups_at_once_count_nothing_twice(transactional_db: None, in_threads: Callable[..., list[Any]]) -> None:
    """Beat may start one while another still runs."""
    start = (timezone.now().timestamp() - 48 * 3600) // 300 * 300
    for n in range(60):
        record(bucket(start + 10 * n, reading(service=1.0)), term=1)
    assert sum(in_threads(roll_up, roll_up, roll_up)) == 3 * 60
    assert [sample.service for sample in samples()] == [30.0, 30.0]


def test_rows_go_after_ninety_days(db: None) -> None:
    """With the marks of workers that have not been heard since."""
    old, young = timezone.now() - timedelta(days=91), timezone.now() - timedelta(days=89)
    for number, at in enumerate((old, young)):
        record(bucket(at.timestamp(), worker_id=f"w-{number}"), term=1)
    assert sweep() == 3
    assert [sample.worker_id for sample in samples()] == ["w-1"]
    assert list(SeriesMark.objects.values_list("worker_id", flat=True)) == ["w-1"]


def test_marks_keep_what_the_contract_says(db: None) -> None:
    """They come back as they were given, pairs too."""
    pair = InterferencePair(by="a", of="group:b", cached_blocks=1, num_preemptions=2, recomputed_tokens=3)
    counters = SeriesCounters(core_started_at=1.25, tenants={"t": TenantCounters(0.5, 1.5, 2, 3, 4)}, pairs=(pair,))
    record(msgspec.structs.replace(bucket(), counters=counters), term=3)
    assert claim_marks(term=4)["w-0"][1] == counters
