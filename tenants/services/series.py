"""Writes of the time series: what the controller heard, its roll-up to coarser rows, and its end after 90 days.

A worker's rows and the mark where its counters stood are written in one transaction. So whoever leads next goes on from
the mark: nothing is counted twice, and nothing that a dead controller had heard but not written is lost. The term of
the leadership decides between two that both write for a moment.
"""

import math
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from tenants.models import InterferenceSample, PressureSample, SeriesMark, TenantSample
from tenants.models.series import COARSE_SECONDS, FINE_SECONDS
from tenants.reports import InterferencePair, SeriesBucket, SeriesCounters, TenantReading

ROLL_UP_AFTER = timedelta(hours=24)
KEEP = timedelta(days=90)
_WINDOWS = 64  # of a table, rolled up in one run: more than ten times what comes between two
_ROWS = 500  # that one statement inserts
_BATCH = 10_000  # rows that one statement deletes
_BATCHES = 20
_MOST = (1 << 40) - 1  # far above what ten seconds can come to: sums over years of them still fit
_LEAST_COVERED = 0.01  # seconds: means are divided by it
_KEYS = ("worker_id", "tenant_id", "by", "of")
_SUMS = (
    "above_soft_seconds",
    "service",
    "output_tokens",
    "num_preemptions",
    "recomputed_tokens",
    "cached_blocks",
    "swapped_bytes",
)
_PEAKS = ("kv_peak_bytes", "oldest_wait_seconds", "score_peak")

Series = type[TenantSample] | type[PressureSample] | type[InterferenceSample]
TABLES: tuple[Series, ...] = (TenantSample, PressureSample, InterferenceSample)


@transaction.atomic
def claim_marks(*, term: int) -> dict[str, tuple[float, SeriesCounters]]:
    """Take the marks over for a new leader, so that none of an older term is written any more.

    Returns:
        By worker: when its newest row ends, in unix seconds, and where its counters stood then.
    """
    SeriesMark.objects.filter(term__lt=term).update(term=term)
    return {
        mark.worker_id: (
            mark.at.timestamp() + FINE_SECONDS,
            msgspec.msgpack.decode(mark.counters, type=SeriesCounters),
        )
        for mark in SeriesMark.objects.all()
    }


@transaction.atomic
def record(bucket: SeriesBucket, *, term: int) -> bool:
    """Write a worker's bucket and move its mark; once more is harmless.

    Returns:
        False, with nothing written, when a controller of a later term has taken over.
    """
    at = datetime.fromtimestamp(bucket.at, UTC)
    if not _move_mark(bucket, at, term):
        return False
    place = {"at": at, "seconds": FINE_SECONDS, "worker_id": _name(bucket.worker_id, 100)}
    covered = min(max(_amount(bucket.covered), _LEAST_COVERED), FINE_SECONDS)
    mean = bucket.pressure.mean
    pressure = PressureSample(
        **place,
        covered=covered,
        score=_amount(mean.score),
        score_peak=_amount(bucket.pressure.score_peak),
        use=_amount(mean.use),
        borrowed=_amount(mean.borrowed),
        wait=_amount(mean.wait),
        swap=_amount(mean.swap),
        pool_use=_amount(bucket.pressure.pool_use),
    )
    _write(PressureSample, PressureSample.objects.all(), [pressure])
    # By key: no statement may write a row twice, and two names may be one when they are cut to what a column holds.
    readings = {tenant_id: one for one in bucket.tenants if (tenant_id := _uuid(one.tenant_id)) is not None}
    samples = [_tenant_sample(one, place, covered, tenant_id) for tenant_id, one in readings.items()]
    _write(TenantSample, TenantSample.objects.across_tenants(), samples)
    pairs = {(pair.by, pair.of): pair for pair in (_pair_sample(pair, place) for pair in bucket.interference)}
    _write(InterferenceSample, InterferenceSample.objects.across_tenants(), list(pairs.values()))
    return True


def roll_up() -> int:
    """Turn rows older than a day into rows of five minutes, a bounded number of them; return how many went.

    Each window is one statement that takes its fine rows out and merges them in, so two at once, or a kill in between,
    count nothing twice. A late fine row is merged into the coarse one that is there.
    """
    return sum(_roll_up(model) for model in TABLES)


def sweep() -> int:
    """Delete rows that are older than 90 days, a bounded number of them; return how many went."""
    old = timezone.now() - KEEP
    SeriesMark.objects.filter(at__lt=old).delete()
    return sum(_sweep(model, old) for model in TABLES)


def _move_mark(bucket: SeriesBucket, at: datetime, term: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {SeriesMark._meta.db_table} AS mark (worker_id, term, at, counters)"  # noqa: S608  # ours
            " VALUES (%s, %s, %s, %s) ON CONFLICT (worker_id) DO UPDATE"
            " SET term = EXCLUDED.term, at = EXCLUDED.at, counters = EXCLUDED.counters"
            " WHERE mark.term <= EXCLUDED.term",
            [_name(bucket.worker_id, 100), term, at, msgspec.msgpack.encode(bucket.counters)],
        )
        return int(cursor.rowcount) == 1


def _tenant_sample(one: TenantReading, place: dict[str, Any], covered: float, tenant_id: uuid.UUID) -> TenantSample:
    gained = one.gained
    return TenantSample(
        **place,
        covered=covered,
        tenant_id=tenant_id,
        weight=_amount(one.weight),
        kv_bytes=_amount(one.kv_bytes),
        kv_cached_bytes=_amount(one.kv_cached_bytes),
        kv_borrowed_bytes=_amount(one.kv_borrowed_bytes),
        kv_peak_bytes=_count(one.kv_peak_bytes),
        running=_amount(one.running),
        queued=_amount(one.queued),
        oldest_wait_seconds=_amount(one.oldest_wait_seconds),
        above_soft_seconds=_amount(gained.above_soft_seconds),
        service=_amount(gained.service),
        output_tokens=_count(gained.output_tokens),
        num_preemptions=_count(gained.num_preemptions),
        recomputed_tokens=_count(gained.recomputed_tokens),
    )


def _pair_sample(pair: InterferencePair, place: dict[str, Any]) -> InterferenceSample:
    return InterferenceSample(
        **place,
        by=_name(pair.by, 120),
        of=_name(pair.of, 120),
        cached_blocks=_count(pair.cached_blocks),
        num_preemptions=_count(pair.num_preemptions),
        recomputed_tokens=_count(pair.recomputed_tokens),
        swapped_bytes=_count(pair.swapped_bytes),
    )


def _write(model: Series, table: QuerySet[Any], rows: Sequence[Any]) -> None:
    """Insert rows; what is there already is replaced."""
    unique, values = ["seconds", "at", *_keys(model)], _values(model)
    table.bulk_create(rows, batch_size=_ROWS, update_conflicts=True, unique_fields=unique, update_fields=values)


def _roll_up(model: Series) -> int:
    before = _window(timezone.now() - ROLL_UP_AFTER)
    num_gone = 0
    for _ in range(_WINDOWS):
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT min(at) FROM {model._meta.db_table} WHERE seconds = %s AND at < %s",  # noqa: S608  # ours
                [FINE_SECONDS, before],
            )
            [oldest] = cursor.fetchone()
            if oldest is None:
                break
            start = _window(oldest)
            end = start + timedelta(seconds=COARSE_SECONDS)
            cursor.execute(_merge_statement(model), [FINE_SECONDS, start, end, start, COARSE_SECONDS])
            [moved] = cursor.fetchone()
            num_gone += moved
    return num_gone


def _merge_statement(model: Series) -> str:
    """Return the statement that takes a window's fine rows out and merges them into coarse ones."""
    table, keys, values = model._meta.db_table, _keys(model), _values(model)
    names = ", ".join([*keys, *values])
    fresh = ", ".join([*keys, *(_merged(name) for name in values)])
    merged = ", ".join(f"{name} = {_met(name)}" for name in values)
    return (
        f"WITH fine AS (DELETE FROM {table} WHERE seconds = %s AND at >= %s AND at < %s RETURNING *),"  # noqa: S608  # ours
        f" coarse AS (INSERT INTO {table} AS old (at, seconds, {names})"
        f" SELECT %s, %s, {fresh} FROM fine GROUP BY {', '.join(keys)}"
        f" ON CONFLICT (seconds, at, {', '.join(keys)}) DO UPDATE SET {merged} RETURNING 1)"
        " SELECT count(*) FROM fine"
    )


def _merged(name: str) -> str:
    """Return a column of several rows as one."""
    if name == "covered" or name in _SUMS:
        return f"sum({name})"
    if name in _PEAKS:
        return f"max({name})"
    return f"sum({name} * covered) / sum(covered)"


def _met(name: str) -> str:
    """Return a column of the row that is there and of a new one as one."""
    if name == "covered" or name in _SUMS:
        return f"old.{name} + EXCLUDED.{name}"
    if name in _PEAKS:
        return f"greatest(old.{name}, EXCLUDED.{name})"
    total = "(old.covered + EXCLUDED.covered)"
    return f"(old.{name} * old.covered + EXCLUDED.{name} * EXCLUDED.covered) / {total}"


def _keys(model: Series) -> list[str]:
    return [name for name in _columns(model) if name in _KEYS]


def _values(model: Series) -> list[str]:
    return [name for name in _columns(model) if name not in ("id", "at", "seconds", *_KEYS)]


def _columns(model: Series) -> Iterable[str]:
    return (field.attname for field in model._meta.concrete_fields)


def _window(at: datetime) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // COARSE_SECONDS * COARSE_SECONDS, UTC)


def _sweep(model: Series, old: datetime) -> int:
    table = model._meta.db_table
    num_gone = 0
    for _ in range(_BATCHES):
        with connection.cursor() as cursor:
            cursor.execute(
                f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE at < %s LIMIT %s)",  # noqa: S608  # ours
                [old, _BATCH],
            )
            num_gone += cursor.rowcount
            if cursor.rowcount < _BATCH:
                break
    return num_gone


def _name(text: str, longest: int) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "")[:longest]


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _count(value: int) -> int:
    return min(max(value, 0), _MOST)


def _amount(value: float) -> float:
    return max(value, 0.0) if math.isfinite(value) else 0.0
