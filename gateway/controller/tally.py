"""One worker's statistics within ten seconds: means, peaks, and what its counters gained. Plain data, no database."""

from dataclasses import dataclass, field

import msgspec

from tenants.models.series import FINE_SECONDS
from tenants.reports import (
    InterferencePair,
    Pressure,
    PressureReading,
    SeriesBucket,
    SeriesCounters,
    TenantCounters,
    TenantReading,
    TenantUse,
    WorkerStats,
)

LATE_SECONDS = 300.0  # what was gained unheard within so long counts as gained now; more would be a false peak: a gap
FIRST_SECONDS = 0.25  # that the first statistics stand for; later ones stand for the time since those before,
MOST_SECONDS = 1.0  # at most so much

Pair = tuple[str, str]  # by whose need, of whose memory
NOTHING = TenantCounters()


@dataclass(slots=True)
class _TenantSums:
    """One tenant's readings in the open bucket."""

    use: TenantUse
    num: int = 0
    kv_bytes: int = 0  # this and the next four: sums over readings
    kv_cached_bytes: int = 0
    kv_borrowed_bytes: int = 0
    running: int = 0
    queued: int = 0
    kv_peak_bytes: int = 0
    oldest_wait_seconds: float = 0.0
    gained: TenantCounters = NOTHING

    def add(self, use: TenantUse, gained: TenantCounters) -> None:
        self.use = use
        self.num += 1
        self.kv_bytes += use.kv_bytes
        self.kv_cached_bytes += use.kv_cached_bytes
        self.kv_borrowed_bytes += use.kv_borrowed_bytes
        self.running += use.running
        self.queued += use.queued
        self.kv_peak_bytes = max(self.kv_peak_bytes, use.kv_peak_bytes, use.kv_bytes)
        self.oldest_wait_seconds = max(self.oldest_wait_seconds, use.oldest_wait_seconds)
        self.gained = _plus(self.gained, gained)

    @property
    def is_idle(self) -> bool:
        """Whether it did nothing but hold what it has cached."""
        _, service, output_tokens, num_preemptions, recomputed_tokens = _fields(self.gained)
        worked = service or output_tokens or num_preemptions or recomputed_tokens
        return not (self.running or self.queued or worked)


@dataclass(slots=True)
class _Bucket:
    """What is summed up in ten seconds."""

    at: float
    num: int = 0
    covered: float = 0.0
    pressure: list[float] = field(default_factory=lambda: [0.0] * 5)  # sums, in the order of Pressure's fields
    score_peak: float = 0.0
    pool_use: float = 0.0
    tenants: dict[str, _TenantSums] = field(default_factory=dict)
    pairs: dict[Pair, InterferencePair] = field(default_factory=dict)  # gained


class Tally:
    """One worker's open bucket, and where its counters stood.

    Args:
        worker_id: the worker.
        mark: when its last row ends (unix seconds) and where its counters stood then; None: nothing is known.
    """

    def __init__(self, worker_id: str, mark: tuple[float, SeriesCounters] | None = None) -> None:
        self.worker_id = worker_id
        self._heard_at, counters = mark or (0.0, SeriesCounters(core_started_at=0.0, tenants={}, pairs=()))
        self._core_started_at = counters.core_started_at
        self._tenants = counters.tenants
        self._pairs: dict[Pair, InterferencePair] = {(pair.by, pair.of): pair for pair in counters.pairs}
        self._is_complete_next = True
        self._bucket: _Bucket | None = None

    def reconnected(self) -> None:
        """Expect complete statistics: pairs that they do not have are forgotten."""
        self._is_complete_next = True

    def add(self, stats: WorkerStats, now: float) -> None:
        """Take statistics; those of a worker without a core say nothing."""
        if not stats.core_started_at:
            return
        bucket = self._bucket
        if bucket is None:
            bucket = self._bucket = _Bucket(at=now // FINE_SECONDS * FINE_SECONDS)
        is_gap = self._go_on(stats, now)
        elapsed = now - self._heard_at if bucket.num else FIRST_SECONDS
        bucket.covered += min(max(elapsed, 0.0), MOST_SECONDS)
        self._heard_at = now
        bucket.num += 1
        self._add_pressure(bucket, stats)
        self._add_tenants(bucket, stats, is_gap=is_gap)
        self._add_pairs(bucket, stats, is_gap=is_gap)

    def is_left(self, now: float) -> bool:
        """Whether the worker has been silent for so long that nothing here would count any more."""
        return self._bucket is None and now - self._heard_at > LATE_SECONDS

    def close(self, now: float) -> SeriesBucket | None:
        """Return the open bucket if its time is over."""
        bucket = self._bucket
        if bucket is None or now < bucket.at + FINE_SECONDS:
            return None
        self._bucket = None
        mean = [value / bucket.num for value in bucket.pressure]
        return SeriesBucket(
            worker_id=self.worker_id,
            at=bucket.at,
            covered=min(bucket.covered, FINE_SECONDS),
            pressure=PressureReading(
                mean=_pressure(mean),
                score_peak=bucket.score_peak,
                pool_use=bucket.pool_use / bucket.num,
            ),
            tenants=tuple(_reading(one, bucket.num) for one in bucket.tenants.values() if not one.is_idle),
            interference=tuple(bucket.pairs.values()),
            counters=SeriesCounters(
                core_started_at=self._core_started_at, tenants=self._tenants, pairs=tuple(self._pairs.values())
            ),
        )

    def _go_on(self, stats: WorkerStats, now: float) -> bool:
        """Go on from where the counters stood, or from a new core's start; say whether too much went unheard."""
        is_new = stats.core_started_at != self._core_started_at
        if is_new:
            self._core_started_at = stats.core_started_at
            self._tenants, self._pairs = {}, {}
            self._is_complete_next = True
        unheard_since = max(self._heard_at, stats.core_started_at) if is_new else self._heard_at
        return now - unheard_since > LATE_SECONDS

    def _add_pressure(self, bucket: _Bucket, stats: WorkerStats) -> None:
        for place, value in enumerate(msgspec.structs.astuple(stats.pressure)):
            bucket.pressure[place] += value
        bucket.score_peak = max(bucket.score_peak, stats.pressure.score)
        held = stats.blocks_total - stats.blocks_free - stats.blocks_cached
        bucket.pool_use += held / stats.blocks_total if stats.blocks_total else 0.0

    def _add_tenants(self, bucket: _Bucket, stats: WorkerStats, *, is_gap: bool) -> None:
        before, self._tenants = self._tenants, {}
        for use in stats.tenants:
            counters = self._tenants[use.tenant_id] = TenantCounters(
                use.above_soft_seconds, use.service, use.output_tokens, use.num_preemptions, use.recomputed_tokens
            )
            gained = NOTHING if is_gap else _gained(counters, before.get(use.tenant_id, NOTHING))
            if gained is NOTHING and not (use.kv_peak_bytes or use.running or use.queued):
                continue  # most tenants, most of the time
            sums = bucket.tenants.get(use.tenant_id)
            if sums is None:
                sums = bucket.tenants[use.tenant_id] = _TenantSums(use)
            sums.add(use, gained)

    def _add_pairs(self, bucket: _Bucket, stats: WorkerStats, *, is_gap: bool) -> None:
        before = self._pairs
        if self._is_complete_next:
            self._pairs, self._is_complete_next = {}, False
        for pair in stats.interference:
            key = (pair.by, pair.of)
            last = before.get(key)
            if not any(_counts(pair)):
                self._pairs.pop(key, None)
                continue
            self._pairs[key] = pair
            gained = _pair_gained(pair, last)
            if is_gap or not any(_counts(gained)):
                continue
            bucket.pairs[key] = _pair_plus(bucket.pairs.get(key), gained)


def _reading(sums: _TenantSums, num: int) -> TenantReading:
    """Return means over all readings of the worker: where the tenant was not among them it held nothing."""
    return TenantReading(
        tenant_id=sums.use.tenant_id,
        weight=sums.use.weight,
        kv_bytes=sums.kv_bytes / num,
        kv_cached_bytes=sums.kv_cached_bytes / num,
        kv_borrowed_bytes=sums.kv_borrowed_bytes / num,
        kv_peak_bytes=sums.kv_peak_bytes,
        running=sums.running / num,
        queued=sums.queued / num,
        oldest_wait_seconds=sums.oldest_wait_seconds,
        gained=sums.gained,
    )


def _pressure(mean: list[float]) -> Pressure:
    score, use, borrowed, wait, swap = mean
    return Pressure(score=score, use=use, borrowed=borrowed, wait=wait, swap=swap)


def _fields(counters: TenantCounters) -> tuple[float, float, int, int, int]:
    return (
        counters.above_soft_seconds,
        counters.service,
        counters.output_tokens,
        counters.num_preemptions,
        counters.recomputed_tokens,
    )


def _gained(now: TenantCounters, before: TenantCounters) -> TenantCounters:
    """Return the difference; counters that have fallen are of a tenant that left and came back: they start anew."""
    if now == before:
        return NOTHING
    if any(new < old for new, old in zip(_fields(now), _fields(before), strict=True)):
        return now
    return TenantCounters(
        now.above_soft_seconds - before.above_soft_seconds,
        now.service - before.service,
        now.output_tokens - before.output_tokens,
        now.num_preemptions - before.num_preemptions,
        now.recomputed_tokens - before.recomputed_tokens,
    )


def _plus(one: TenantCounters, other: TenantCounters) -> TenantCounters:
    if other is NOTHING:
        return one
    return TenantCounters(
        one.above_soft_seconds + other.above_soft_seconds,
        one.service + other.service,
        one.output_tokens + other.output_tokens,
        one.num_preemptions + other.num_preemptions,
        one.recomputed_tokens + other.recomputed_tokens,
    )


def _counts(pair: InterferencePair) -> tuple[int, int, int, int]:
    return pair.cached_blocks, pair.num_preemptions, pair.recomputed_tokens, pair.swapped_bytes


def _pair_gained(now: InterferencePair, before: InterferencePair | None) -> InterferencePair:
    if before is None or any(new < old for new, old in zip(_counts(now), _counts(before), strict=True)):
        return now
    return _pair(now, [new - old for new, old in zip(_counts(now), _counts(before), strict=True)])


def _pair_plus(one: InterferencePair | None, other: InterferencePair) -> InterferencePair:
    if one is None:
        return other
    return _pair(one, [a + b for a, b in zip(_counts(one), _counts(other), strict=True)])


def _pair(of: InterferencePair, counts: list[int]) -> InterferencePair:
    blocks, preemptions, tokens, num_bytes = counts
    return InterferencePair(
        by=of.by,
        of=of.of,
        cached_blocks=blocks,
        num_preemptions=preemptions,
        recomputed_tokens=tokens,
        swapped_bytes=num_bytes,
    )
