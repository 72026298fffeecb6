"""Slices of the limits, leased from Redis by each web process.

Redis holds one bucket a limit. A process takes a slice out of it, spends the slice without asking anybody, and gives
back what is left after SLICE_SECONDS, so that the sum over all processes never exceeds the limit. A killed process
loses its slice, which the bucket refills: nothing leaks. With Redis away each process goes on within its last share.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import cast

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from gateway.admission.limits import Bucket, slice_size, wait_seconds

SLICE_SECONDS = 2.0  # unspent: given back
IDLE_SECONDS = 120.0  # forgotten
RETRY_SECONDS = 1.0  # Redis away: how long until it is asked again, doubling to
LAST_RETRY_SECONDS = 8.0
SHORT_SECONDS = 0.05  # a refusal by Redis holds so long for this process
STORE_SECONDS = 0.25  # socket timeouts of `store`: how long a request waits for Redis

_log = structlog.get_logger("gateway.admission")

# One step on a bucket: refill by Redis' own clock, take back (or charge) what the process returns, grant.
# KEYS bucket, processes; ARGV limit, wanted at least, wanted, returned, process. Answer: granted, left, processes.
_LEASE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local limit = tonumber(ARGV[1])
local held = redis.call('HMGET', KEYS[1], 'amount', 'at')
local amount = tonumber(held[1]) or limit
local at = tonumber(held[2]) or now
amount = math.min(limit, amount + math.max(0, now - at) * limit / 60 + tonumber(ARGV[4]))
local granted = 0
if amount >= tonumber(ARGV[2]) then granted = math.min(tonumber(ARGV[3]), amount) end
amount = amount - granted
redis.call('HSET', KEYS[1], 'amount', string.format('%.6f', amount), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((limit - amount) / limit * 60000) + 10000)
redis.call('ZADD', KEYS[2], now, ARGV[5])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 30)
redis.call('PEXPIRE', KEYS[2], 60000)
return {string.format('%.6f', granted), string.format('%.6f', amount), redis.call('ZCARD', KEYS[2])}
"""


@dataclass(slots=True)
class Slice:
    """What this process holds of one limit. `amount` may be negative: settled usage that was more than reserved."""

    limit: int
    amount: float = 0.0
    expires_at: float = 0.0  # monotonic, as all times here
    used_at: float = 0.0
    shared: float = 0.0  # left in Redis at `shared_at`
    shared_at: float = 0.0
    processes: int = 1
    share: Bucket | None = None  # set while Redis is away
    short_until: float = 0.0  # the store said no: it isn't asked again at once by every caller of a flood
    short_wanted: float = 0.0
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def balance(self, now: float) -> float:
        """Estimate what the limit has left, this process's slice included; negative: a debt that must flow in first."""
        if self.share is not None:
            return self.share.amount
        refilled = self.shared + max(0.0, now - self.shared_at) * self.limit / 60
        return min(self.limit, self.amount + refilled)


class Leases:
    """The slices of one process.

    Args:
        store: Redis, with short socket timeouts. Its calls are never cancelled: redis-py can swallow a cancellation.
        processes: how many share the limits at least; Redis tells of more.
    """

    def __init__(self, store: "redis.asyncio.Redis[bytes]", processes: int = 1) -> None:
        self._lease = store.register_script(_LEASE)
        self._processes = processes
        self._process = uuid.uuid4().hex
        self._slices: dict[str, Slice] = {}
        self._away_until = 0.0
        self._retry_seconds = RETRY_SECONDS
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to give back what lies unspent."""
        self._task = asyncio.create_task(self._tend(), name="leases")

    async def stop(self) -> None:
        """Give everything back."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        await self._give_back(everything=True)

    async def take(self, scope: str, limit: int, wanted: float) -> float:
        """Take `wanted` of a limit a minute.

        Returns:
            0, or the seconds to wait until a try can succeed; then nothing was taken.
        """
        now = time.monotonic()
        part = self._slice(scope, limit, now)
        if self._spend(part, wanted, now):
            return 0.0
        async with part.renewing:
            now = time.monotonic()
            if self._spend(part, wanted, now):
                return 0.0
            if not (now < part.short_until and wanted >= part.short_wanted):
                await self._renew(scope, part, wanted)
                now = time.monotonic()
                if self._spend(part, wanted, now):
                    return 0.0
                part.short_until, part.short_wanted = now + SHORT_SECONDS, wanted
            rate = part.share.capacity if part.share is not None else part.limit
            return max(0.001, wait_seconds(wanted, part.balance(now), rate))

    def give(self, scope: str, limit: int, amount: float) -> None:
        """Give back a part of what was taken; negative: charge more, into debt if need be."""
        part = self._slice(scope, limit, time.monotonic())
        part.short_until = 0.0
        if part.share is not None:
            part.share.amount = min(part.share.capacity, part.share.amount + amount)
        else:
            part.amount += amount

    def state(self, scope: str) -> Slice | None:
        """Return what is held of a limit."""
        return self._slices.get(scope)

    def _slice(self, scope: str, limit: int, now: float) -> Slice:
        part = self._slices.get(scope)
        if part is None:
            part = self._slices[scope] = Slice(limit, processes=self._processes, shared=limit, shared_at=now)
        if part.limit != limit:  # the policy moved: what is held under the old one is worth no more than the new one
            part.limit, part.amount, part.share = limit, min(part.amount, 0.0), None
        part.used_at = now
        return part

    def _spend(self, part: Slice, wanted: float, now: float) -> bool:
        if part.share is not None and now < self._away_until:
            return part.share.take(wanted, now)
        if part.share is not None or now >= part.expires_at or part.amount < wanted:
            return False
        part.amount -= wanted
        return True

    async def _renew(self, scope: str, part: Slice, wanted: float) -> None:
        now = time.monotonic()
        if now < self._away_until:
            self._fall_back(part, now)
            return
        if part.share is not None:
            part.share.refill(now)
            part.amount = part.share.amount - part.share.capacity  # what was used while Redis was away
        returned, part.amount = part.amount, 0.0
        want = slice_size(wanted, part.limit, part.processes)
        try:
            granted, part.shared, part.processes = await self._ask(scope, part.limit, wanted, want, returned)
        except (RedisError, OSError) as error:
            part.amount = returned
            self._lost(error)
            self._fall_back(part, time.monotonic())
            return
        now = time.monotonic()
        part.share = None
        part.amount += granted
        part.shared_at, part.expires_at = now, now + SLICE_SECONDS

    async def _ask(
        self, scope: str, limit: int, least: float, wanted: float, returned: float
    ) -> tuple[float, float, int]:
        keys = [f"tollgate:{{{scope}}}:bucket", f"tollgate:{{{scope}}}:processes"]
        call = cast(
            Awaitable[list[bytes]], self._lease(keys=keys, args=[limit, least, wanted, returned, self._process])
        )
        granted, left, processes = await call
        self._retry_seconds = RETRY_SECONDS
        return float(granted), float(left), max(int(processes), self._processes)

    def _lost(self, error: Exception) -> None:
        if time.monotonic() >= self._away_until:
            _log.warning("leases_on_last_share", reason=f"{type(error).__name__}: {error}")
            self._away_until = time.monotonic() + self._retry_seconds
            self._retry_seconds = min(self._retry_seconds * 2, LAST_RETRY_SECONDS)

    def _fall_back(self, part: Slice, now: float) -> None:
        if part.share is None:
            capacity = part.limit / max(1, part.processes)
            known = max(part.amount, max(0.0, part.balance(now)) / max(1, part.processes))
            part.share = Bucket(capacity, min(capacity, known), now)
            part.amount = 0.0

    async def _tend(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLICE_SECONDS / 2):
                    await self._stopping.wait()
            await self._give_back(everything=False)

    async def _give_back(self, *, everything: bool) -> None:
        """Return unspent slices and debts; forget what is idle."""
        now = time.monotonic()
        for scope, part in list(self._slices.items()):
            if part.renewing.locked():
                continue
            due = part.share is None and part.amount != 0 and (everything or now >= part.expires_at)
            if due and now >= self._away_until:
                async with part.renewing:
                    await self._return(scope, part)
            if now - part.used_at > IDLE_SECONDS:
                self._slices.pop(scope, None)

    async def _return(self, scope: str, part: Slice) -> None:
        returned, part.amount = part.amount, 0.0
        try:
            _, part.shared, part.processes = await self._ask(scope, part.limit, 0, 0, returned)
            part.shared_at = time.monotonic()
        except (RedisError, OSError) as error:
            part.amount += returned
            self._lost(error)
