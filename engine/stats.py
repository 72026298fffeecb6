"""The core's counters at one moment: plain data, free of the wire's form."""

from dataclasses import dataclass

from engine.memory.accounts import ShareGroupId
from engine.memory.manager import KVMemory
from engine.policy import ShareGroup
from engine.request import TenantId
from engine.scheduler.plan import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """One tenant's account and requests; the peak is since the last collection."""

    tenant: TenantId
    kv_bytes: int
    kv_peak_bytes: int
    kv_cached_bytes: int
    running: int
    queued: int
    output_tokens: int  # since the core started


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupUse:
    """One share group's account and what is registered for it; the peak is since the last collection."""

    name: str
    kv_bytes: int
    kv_peak_bytes: int
    kv_cached_bytes: int
    num_prefixes: int
    prefix_tokens: int  # of all of them, in whole blocks: what can be shared


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Blocks, requests and tokens of the whole core; tokens and preemptions since it started."""

    step: int
    blocks_total: int
    blocks_free: int
    blocks_open: int
    blocks_sealed: int
    blocks_cached: int
    running: int
    queued: int
    prompt_tokens: int
    output_tokens: int
    num_preemptions: int
    prefix_asked_tokens: int  # of prompts when they were first admitted
    prefix_found_tokens: int  # of them, those that the prefix tree held
    num_evicted_blocks: int  # cached ones that were given up
    tenants: tuple[TenantUse, ...]
    share_groups: tuple[ShareGroupUse, ...]


def collect(scheduler: Scheduler) -> EngineStats:
    """Read the counters. Side effect: every account's peak starts again."""
    pool, roster = scheduler.memory.pool, scheduler.roster
    block_bytes = scheduler.memory.shape.block_bytes
    tenants = tuple(
        TenantUse(
            tenant=tenant.name,
            kv_bytes=(tenant.account.blocks if tenant.account else 0) * block_bytes,
            kv_peak_bytes=(tenant.account.take_peak() if tenant.account else 0) * block_bytes,
            kv_cached_bytes=(tenant.account.cached if tenant.account else 0) * block_bytes,
            running=len(tenant.running),
            queued=tenant.num_live - len(tenant.running),
            output_tokens=tenant.output_tokens,
        )
        for tenant in roster.tenants.values()
    )
    asked, found = scheduler.prefix_tokens
    return EngineStats(
        step=scheduler.step,
        blocks_total=pool.num_blocks,
        blocks_free=pool.num_free,
        blocks_open=pool.num_open,
        blocks_sealed=pool.num_sealed,
        blocks_cached=pool.num_cached,
        running=len(roster.running),
        queued=len(roster.sequences) - len(roster.running),
        prompt_tokens=scheduler.prompt_tokens,
        output_tokens=scheduler.output_tokens,
        num_preemptions=roster.num_preemptions,
        prefix_asked_tokens=asked,
        prefix_found_tokens=found,
        num_evicted_blocks=scheduler.memory.supply.num_evicted,
        tenants=tenants,
        share_groups=tuple(_group_use(scheduler.memory, group) for group in scheduler.share_groups),
    )


def _group_use(memory: KVMemory, group: ShareGroup) -> ShareGroupUse:
    account = memory.accounts.get(ShareGroupId(group.name))
    assert account is not None, "a registered group has an account"
    size, block_bytes = memory.shape.block_size, memory.shape.block_bytes
    return ShareGroupUse(
        name=group.name,
        kv_bytes=account.blocks * block_bytes,
        kv_peak_bytes=account.take_peak() * block_bytes,
        kv_cached_bytes=account.cached * block_bytes,
        num_prefixes=len(group.prefixes),
        prefix_tokens=sum(len(prefix.token_ids) // size * size for prefix in group.prefixes),
    )
