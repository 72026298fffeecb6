"""The last statistics of each worker, which the controller leaves in Redis: what a page starts from before the feed."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
import redis
import structlog
from django.conf import settings

from tenants import selectors
from tenants.contracts import STATS_KEY, TenantUse, WorkerStats

log = structlog.get_logger(__name__)

_PATIENCE_SECONDS = 0.5  # a page is worth more than its first numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One tenant's use of the whole fleet."""

    kv_bytes: int = 0
    running: int = 0
    queued: int = 0
    output_tokens_per_second: float = 0.0


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
        uses = [use for worker in self.workers for use in worker.tenants if use.tenant_id == tenant_id]
        return _added(uses)


def readings() -> Readings:
    """Read the last statistics of every live worker; a Redis that does not answer gives no readings, and a warning."""
    names = [worker.worker_id for worker in selectors.live_workers()]
    if not names:
        return Readings(workers=(), missing=0)
    try:
        values = _redis().mget([STATS_KEY.format(worker_id=name) for name in names])
    except redis.RedisError as error:
        log.warning("readings_away", reason=type(error).__name__)
        return Readings(workers=(), missing=len(names))
    workers = tuple(msgspec.json.decode(value, type=WorkerStats) for value in values if value)
    return Readings(workers=workers, missing=len(names) - len(workers))


def _added(uses: Iterable[TenantUse]) -> Use:
    total = Use()
    for use in uses:
        total = Use(
            kv_bytes=total.kv_bytes + use.kv_bytes,
            running=total.running + use.running,
            queued=total.queued + use.queued,
            output_tokens_per_second=total.output_tokens_per_second + use.output_tokens_per_second,
        )
    return total


@lru_cache(maxsize=1)
def _redis() -> "redis.Redis[bytes]":
    """Return the process's client; its pool opens connections when they are needed."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=_PATIENCE_SECONDS, socket_connect_timeout=_PATIENCE_SECONDS
    )
