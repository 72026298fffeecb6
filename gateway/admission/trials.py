"""Rates on trial: a tenant's `shadow.rpm` and `shadow.tpm` count the requests that they would have refused.

They are leased like the rates that bind, from buckets of their own, but beside the request, which never waits for them.
Counts are added up here and go to Redis each FLUSH_SECONDS, under the limit's name and value, so that another value
counts anew.
"""

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from gateway.admission.leases import Leases
from tenants.contracts import KeyGrant
from tenants.reports import SHADOW_KEPT_SECONDS, SHADOW_KEY

FLUSH_SECONDS = 1.0

_log = structlog.get_logger("gateway.admission")


@dataclass(slots=True)
class Trial:
    """One request that is tried. `settle` once, as its permit is."""

    leases: Leases
    scope: str = ""  # of the tokens that were taken; empty: none
    limit: int = 0
    taken: float = 0.0
    used_tokens: int | None = None  # once settled

    def settle(self, used_tokens: int) -> None:
        """Replace the tokens that were taken by what was used."""
        if self.used_tokens is None:
            self.used_tokens = used_tokens
            self._give_back()

    def took(self, scope: str, limit: int, amount: float) -> None:
        """Note tokens that were taken, maybe after the request has ended."""
        self.scope, self.limit, self.taken = scope, limit, amount
        if self.used_tokens is not None:
            self._give_back()

    def _give_back(self) -> None:
        if self.scope and self.used_tokens is not None:
            self.leases.give(self.scope, self.limit, self.taken - self.used_tokens)


@dataclass(slots=True)
class Trials:
    """The trials of one process.

    Args:
        leases: where rates are leased.
        store: Redis, with short socket timeouts.
    """

    leases: Leases
    store: "redis.asyncio.Redis[bytes]"
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # by tenant and "limit:value"
    _running: set["asyncio.Task[None]"] = field(default_factory=set)
    _flushing: "asyncio.Task[None] | None" = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        """Begin to publish counts."""
        self._flushing = asyncio.create_task(self._flush_often(), name="trials")

    async def stop(self) -> None:
        """Publish what has been counted."""
        self._stopping.set()
        await asyncio.gather(*self._running, *([self._flushing] if self._flushing else []))
        await self._flush()

    def begin(self, grant: KeyGrant, *, prompt_tokens: int, tokens: int) -> Trial | None:
        """Try a request that was admitted; None where its tenant has no rate on trial."""
        shadow = grant.policy.shadow
        if shadow.rpm is None and shadow.tpm is None:
            return None
        trial = Trial(self.leases)
        task = asyncio.create_task(self._try(grant, trial, prompt_tokens, tokens))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return trial

    async def _try(self, grant: KeyGrant, trial: Trial, prompt_tokens: int, tokens: int) -> None:
        shadow, tenant_id = grant.policy.shadow, grant.tenant_id
        if shadow.rpm is not None and await self._take(tenant_id, "rpm", shadow.rpm, 1.0):
            self._counts[tenant_id, f"rpm:{shadow.rpm}"] += 1
        if shadow.tpm is None or not tokens:  # a call that takes no tokens
            return
        wanted = float(min(tokens, shadow.tpm))
        if prompt_tokens > shadow.tpm or await self._take(tenant_id, "tpm", shadow.tpm, wanted):
            self._counts[tenant_id, f"tpm:{shadow.tpm}"] += 1
        else:
            trial.took(_scope(tenant_id, "tpm"), shadow.tpm, wanted)

    async def _take(self, tenant_id: str, name: str, limit: int, wanted: float) -> bool:
        """Take of a rate on trial; return whether it would have refused."""
        return await self.leases.take(_scope(tenant_id, name), limit, wanted) > 0

    async def _flush_often(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._stopping.wait()
            await self._flush()

    async def _flush(self) -> None:
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            async with self.store.pipeline(transaction=True) as pipeline:
                for (tenant_id, limit), count in counts.items():
                    key = SHADOW_KEY.format(tenant_id=tenant_id)
                    pipeline.hincrby(key, limit, count)
                    pipeline.expire(key, SHADOW_KEPT_SECONDS)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            self._counts.update(counts)  # they wait
            _log.warning("trial_counts_wait", reason=f"{type(error).__name__}: {error}")


def _scope(tenant_id: str, name: str) -> str:
    return f"tenant:{tenant_id}:shadow:{name}"
