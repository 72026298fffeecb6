"""What the controller leaves in Redis about each worker: its last statistics, and what registered prefixes are to it.

A page starts from them before the feed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, reduce

import msgspec
import redis
import structlog
from django.conf import settings

from tenants import selectors
from tenants.reports import PREFIXES_KEY, SHADOW_KEY, STATS_KEY, PrefixReading, ShareGroupUse, TenantUse, WorkerStats

log = structlog.get_logger(__name__)

_PATIENCE_SECONDS = 0.5  # a page is worth more than its first numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One tenant's use of the whole fleet, or one share group's, which runs nothing itself."""

    kv_bytes: int = 0
    kv_cached_bytes: int = 0  # of `kv_bytes`, what no request holds
    running: int = 0
    queued: int = 0
    output_tokens_per_second: float = 0.0
    kv_borrowed_bytes: int = 0  # of `kv_bytes`, above the guarantees of the workers that hold it
    host_bytes: int = 0
    disk_bytes: int = 0
    num_sessions: int = 0
    above_soft_seconds: float = 0.0  # since the workers' cores started: of the one that counts most
    oldest_wait_seconds: float = 0.0  # now; 0: nobody waits

    @property
    def above_soft_ms(self) -> float:
        """Time above the guarantee in milliseconds, as figures take it."""
        return self.above_soft_seconds * 1000

    @property
    def kv_held_bytes(self) -> int:
        """What requests hold."""
        return self.kv_bytes - self.kv_cached_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the live workers last said. `missing`: those that said nothing within 5 s, or all when Redis is away."""

    workers: tuple[WorkerStats, ...]
    missing: int

    @property
    def at(self) -> datetime | None:
        """When the oldest of the readings was taken."""
        return datetime.fromtimestamp(min(worker.at for worker in self.workers), UTC) if self.workers else None

    @property
    def pool_bytes(self) -> int:
        """Device KV of the workers that spoke."""
        return sum(worker.blocks_total * worker.block_bytes for worker in self.workers)

    @property
    def used_bytes(self) -> int:
        """Device KV that requests hold."""
        return sum(
            (worker.blocks_total - worker.blocks_free - worker.blocks_cached) * worker.block_bytes
            for worker in self.workers
        )

    @property
    def cached_bytes(self) -> int:
        """Device KV that no request holds and the next one may find."""
        return sum(worker.blocks_cached * worker.block_bytes for worker in self.workers)

    @property
    def running(self) -> int:
        """Requests that hold blocks."""
        return sum(worker.running for worker in self.workers)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return sum(worker.queued for worker in self.workers)

    @property
    def output_tokens_per_second(self) -> float:
        """Tokens generated a second."""
        return sum(worker.output_tokens_per_second for worker in self.workers)

    def of(self, tenant_id: str) -> Use:
        """Return one tenant's use, added up over the workers."""
        return reduce(
            _plus, (use for worker in self.workers for use in worker.tenants if use.tenant_id == tenant_id), Use()
        )

    def of_group(self, name: str) -> Use:
        """Return one share group's use, added up over the workers."""
        return reduce(_plus, (use for worker in self.workers for use in worker.share_groups if use.name == name), Use())


def readings() -> Readings:
    """Read the last statistics of every live worker; a Redis that does not answer gives no readings, and a warning."""
    names = [worker.worker_id for worker in selectors.live_workers()]
    values = _read([STATS_KEY.format(worker_id=name) for name in names])
    workers = tuple(msgspec.json.decode(value, type=WorkerStats) for value in values)
    return Readings(workers=workers, missing=len(names) - len(workers))


def prefix_readings() -> dict[str, tuple[PrefixReading, ...]]:
    """Return what each registered prefix, by id, is to each model that live workers serve, by the model's name.

    Of several workers with one model the first that can share it speaks. A prefix without an entry has not reached a
    worker yet, or Redis does not answer.
    """
    keys = [PREFIXES_KEY.format(worker_id=worker.worker_id) for worker in selectors.live_workers()]
    found: dict[str, dict[str, PrefixReading]] = {}
    for value in _read(keys):
        for reading in msgspec.json.decode(value, type=list[PrefixReading]):
            by_model = found.setdefault(reading.prefix_id, {})
            if reading.model not in by_model or by_model[reading.model].problem:
                by_model[reading.model] = reading
    return {prefix_id: tuple(by_model[model] for model in sorted(by_model)) for prefix_id, by_model in found.items()}


def shadow_counts(tenant_id: str) -> dict[str, int]:
    """Return what the gateway has counted of a tenant's rates on trial, {"rpm:300": requests}; none without Redis."""
    try:
        found = _redis().hgetall(SHADOW_KEY.format(tenant_id=tenant_id))
    except redis.RedisError as error:
        log.warning("readings_away", reason=type(error).__name__)
        return {}
    return {name.decode(): int(count) for name, count in found.items()}


def _plus(total: Use, use: TenantUse | ShareGroupUse) -> Use:
    """Add one worker's part."""
    kv_bytes = total.kv_bytes + use.kv_bytes
    kv_cached_bytes = total.kv_cached_bytes + use.kv_cached_bytes
    if isinstance(use, ShareGroupUse):
        return Use(kv_bytes=kv_bytes, kv_cached_bytes=kv_cached_bytes)
    return Use(
        kv_bytes=kv_bytes,
        kv_cached_bytes=kv_cached_bytes,
        running=total.running + use.running,
        queued=total.queued + use.queued,
        output_tokens_per_second=total.output_tokens_per_second + use.output_tokens_per_second,
        kv_borrowed_bytes=total.kv_borrowed_bytes + use.kv_borrowed_bytes,
        host_bytes=total.host_bytes + use.host_bytes,
        disk_bytes=total.disk_bytes + use.disk_bytes,
        num_sessions=total.num_sessions + use.num_sessions,
        above_soft_seconds=max(total.above_soft_seconds, use.above_soft_seconds),
        oldest_wait_seconds=max(total.oldest_wait_seconds, use.oldest_wait_seconds),
    )


def _read(keys: Sequence[str]) -> list[bytes]:
    """Return the values that are there; none when Redis is away, which the log says."""
    if not keys:
        return []
    try:
        return [value for value in _redis().mget(keys) if value is not None]
    except redis.RedisError as error:
        log.warning("readings_away", reason=type(error).__name__)
        return []


@lru_cache(maxsize=1)
def _redis() -> "redis.Redis[bytes]":
    """Return the process's client; its pool opens connections when they are needed."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=_PATIENCE_SECONDS, socket_connect_timeout=_PATIENCE_SECONDS
    )
