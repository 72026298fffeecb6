"""Live hints for dashboards: small messages to the Channels group; each worker's last stats and prefixes into Redis.

Hints may be lost: each carries `seq`, and a client that sees a gap reads again. So nothing here waits for Redis or
keeps much for it: while it is away, hints are dropped, which the log says once, and policy, acks and usage go on. Only
what is known of prefixes waits, the newest of each worker.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import redis.asyncio as redis
import structlog
from channels.layers import get_channel_layer

from tenants.contracts import PolicyAcks
from tenants.reports import LIVE_GROUP, PREFIXES_KEY, STATS_KEY, HintKind, PrefixReading, WorkerStats

STATS_SECONDS = 0.25  # stats hints are at least this far apart
STATS_EXPIRE_SECONDS = 5
PREFIXES_EXPIRE_SECONDS = 120  # the controller tells them again every 30 s
REDIS_SECONDS = 1.0  # how long Redis may take before it counts as away
RETRY_SECONDS = 1.0
MAX_WAITING = 256  # hints; the oldest are dropped

log = structlog.get_logger("hints")


class HintPublisher:
    """Publishes hints from one task. The methods that take hints never block and never fail.

    Args:
        redis_url: where the last stats go; the Channels layer has its own setting.
    """

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._stats: dict[str, WorkerStats] = {}
        self._prefixes: dict[str, tuple[PrefixReading, ...]] = {}
        self._wake = asyncio.Event()
        self._prefixes_wake = asyncio.Event()
        self._seq = 0
        self._away = False

    def stats(self, stats: WorkerStats) -> None:
        """Take a worker's newest stats; they leave with the next stats hint."""
        self._stats[stats.worker_id] = stats

    def prefixes(self, worker_id: str, readings: tuple[PrefixReading, ...]) -> None:
        """Take all that is known of registered prefixes on a worker."""
        self._prefixes[worker_id] = readings
        self._prefixes_wake.set()

    def sent(self, kind: Literal["tenant", "share_group"], name: str, version: int, *, of: int) -> None:
        """Say that a version of a tenant or group is on its way to `of` live workers; none has applied it yet."""
        whose = {"tenant_id": "", "share_group": ""} | {"tenant_id" if kind == "tenant" else "share_group": name}
        self._put(
            "policy", {**whose, "version": version, "applied": 0, "of": of, "ms": 0.0, "settled": 0, "settled_ms": 0.0}
        )

    def policy(self, acks: PolicyAcks) -> None:
        """Say how far a policy version has come."""
        slowest = max((ack.ms for ack in acks.workers if ack.ms is not None), default=0.0)
        whose = {"tenant_id": acks.tenant_id, "share_group": acks.share_group}
        settled = (ack.settled_at for ack in acks.workers if ack.settled_at is not None)
        seconds = max(((at - acks.changed_at).total_seconds() for at in settled), default=0.0)
        progress = {"version": acks.version, "applied": acks.applied, "of": acks.of, "ms": slowest}
        self._put("policy", {**whose, **progress, "settled": acks.settled, "settled_ms": max(seconds, 0.0) * 1000})

    def workers(self) -> None:
        """Say that the set of workers changed."""
        self._put("workers", {})

    async def run(self) -> None:
        """Publish until cancelled."""
        async with (
            redis.Redis.from_url(
                self._redis_url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
            ) as client,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._publish_hints())
            tasks.create_task(self._publish_stats(client))
            tasks.create_task(self._publish_prefixes(client))

    def _put(self, kind: HintKind, fields: Mapping[str, Any]) -> None:
        # The number is given here, so that a hint that is dropped leaves a gap which clients see.
        self._seq += 1
        self._waiting.append({"type": "hint", "kind": kind, "seq": self._seq, **fields})
        self._wake.set()

    async def _publish_hints(self) -> None:
        layer = get_channel_layer()
        assert layer is not None, "settings name a channel layer"
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._attempt(layer.group_send(LIVE_GROUP, self._waiting.popleft()))

    async def _publish_stats(self, client: "redis.Redis[bytes]") -> None:
        while True:
            stats, self._stats = self._stats, {}
            if stats:
                self._put("stats", {"workers": [msgspec.to_builtins(item) for item in stats.values()]})
                await self._attempt(self._store(client, stats.values()))
            await asyncio.sleep(STATS_SECONDS)

    async def _publish_prefixes(self, client: "redis.Redis[bytes]") -> None:
        while True:
            await self._prefixes_wake.wait()
            self._prefixes_wake.clear()
            prefixes, self._prefixes = self._prefixes, {}
            if not await self._attempt(self._store_prefixes(client, prefixes)):
                self._prefixes = prefixes | self._prefixes
                self._prefixes_wake.set()

    async def _store_prefixes(
        self, client: "redis.Redis[bytes]", prefixes: Mapping[str, tuple[PrefixReading, ...]]
    ) -> None:
        async with client.pipeline(transaction=False) as pipeline:
            for worker_id, readings in prefixes.items():
                key = PREFIXES_KEY.format(worker_id=worker_id)
                if readings:
                    pipeline.set(key, msgspec.json.encode(readings), ex=PREFIXES_EXPIRE_SECONDS)
                else:
                    pipeline.delete(key)
            await pipeline.execute()

    async def _store(self, client: "redis.Redis[bytes]", stats: Any) -> None:
        async with client.pipeline(transaction=False) as pipeline:
            for item in stats:
                key = STATS_KEY.format(worker_id=item.worker_id)
                pipeline.set(key, msgspec.json.encode(item), ex=STATS_EXPIRE_SECONDS)
            await pipeline.execute()

    async def _attempt(self, sending: Any) -> bool:
        """Send; return whether Redis took it."""
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                await sending
        except (redis.RedisError, OSError, TimeoutError) as error:
            if not self._away:
                log.warning("redis_away", reason=str(error) or type(error).__name__)
            self._away = True
            await asyncio.sleep(RETRY_SECONDS)
            is_sent = False
        else:
            if self._away:
                log.info("redis_back")
            self._away = False
            is_sent = True
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # the client has been seen to swallow a cancellation
        return is_sent
