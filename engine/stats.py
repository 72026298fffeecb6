"""The core's counters at one moment: plain data, free of the wire's form."""

from dataclasses import dataclass, replace

from engine.memory.accounts import ShareGroupId
from engine.memory.manager import KVMemory
from engine.memory.tiers.figures import DEVICE, HOST, TierCounts
from engine.policy import ShareGroup
from engine.request import TenantId
from engine.scheduler.interference import account_name
from engine.scheduler.plan import Scheduler
from engine.scheduler.pressure_score import Parts
from engine.scheduler.roster import Roster
from engine.scheduler.swap_cost import SwapCounts
from engine.scheduler.tenant import Tenant
from engine.scheduler.tier_counts import tier_counts
from engine.scheduler.trial import TrialCount


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """One tenant's account and requests; the peak is since the last collection."""

    tenant: TenantId
    kv_bytes: int
    kv_peak_bytes: int
    kv_cached_bytes: int
    kv_borrowed_bytes: int  # of `kv_bytes`, above the guarantee
    host_bytes: int
    disk_bytes: int
    num_sessions: int
    running: int
    queued: int
    oldest_wait_seconds: float  # in its lines, or since it was preempted; 0: nobody waits
    weight: float
    output_tokens: int  # this and the next four: since the tenant came
    above_soft_seconds: float
    service: float  # weighted tokens, before the division by weight
    num_preemptions: int
    recomputed_tokens: int
    trial: tuple[TrialCount, ...] = ()  # since each limit was put on trial


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
class PairCost:
    """What one account's need has cost another since the core started; all zero: it counts from zero again."""

    by: str
    of: str
    cached_blocks: int
    num_preemptions: int
    recomputed_tokens: int
    swapped_bytes: int


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
    host_bytes_total: int
    host_bytes_used: int
    swapped_out_bytes: int  # device to host, for whatever reason
    swapped_in_bytes: int
    tiers: TierCounts  # what is where, and what went from where to where
    num_sessions: int
    swaps: SwapCounts  # how it was decided what to do with preempted sequences, and how good the predictions were
    tenants: tuple[TenantUse, ...]
    share_groups: tuple[ShareGroupUse, ...]
    pressure_score: float
    pressure: Parts
    interference: tuple[PairCost, ...]  # pairs that have changed since the last collection


def collect(scheduler: Scheduler) -> EngineStats:
    """Read the counters. Side effects: every account's peak starts again, what has changed is told once."""
    pool, roster, now = scheduler.memory.pool, scheduler.roster, scheduler.now
    roster.pressure.refresh(now)
    tiers = tier_counts(scheduler.memory, roster)
    tenants = tuple(_use(roster, tenant, tiers, now) for tenant in roster.tenants.values())
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
        host_bytes_total=tiers.host_bytes_total,
        host_bytes_used=tiers.host_bytes_used,
        swapped_out_bytes=_moved_bytes(tiers, DEVICE, HOST),
        swapped_in_bytes=_moved_bytes(tiers, HOST, DEVICE),
        tiers=tiers,
        num_sessions=roster.parking.sessions.num_sessions,
        swaps=replace(roster.swapping.counts),
        tenants=tenants,
        share_groups=tuple(_group_use(scheduler.memory, group) for group in scheduler.share_groups),
        pressure_score=roster.pressure.score,
        pressure=roster.pressure.parts,
        interference=_changed_pairs(roster),
    )


def _moved_bytes(tiers: TierCounts, source: str, target: str) -> int:
    return sum(one.bytes for one in tiers.traffic if (one.source, one.target) == (source, target))


def _use(roster: Roster, tenant: Tenant, tiers: TierCounts, now: float) -> TenantUse:
    account, block_bytes = tenant.account, roster.memory.shape.block_bytes
    oldest = min(line.waiting_since() for line in tenant.lines) if tenant.num_waiting else now
    return TenantUse(
        tenant=tenant.name,
        kv_bytes=account.blocks * block_bytes if account else 0,
        kv_peak_bytes=account.take_peak() * block_bytes if account else 0,
        kv_cached_bytes=account.cached * block_bytes if account else 0,
        kv_borrowed_bytes=account.overage * block_bytes if account else 0,
        host_bytes=tiers.host_bytes.get(tenant.name, 0),
        disk_bytes=tiers.disk_bytes.get(tenant.name, 0),
        num_sessions=roster.parking.sessions.count(tenant.name),
        running=len(tenant.running),
        queued=tenant.num_live - len(tenant.running),
        oldest_wait_seconds=max(0.0, now - oldest),
        weight=tenant.policy.weight if tenant.policy else 1.0,
        output_tokens=tenant.output_tokens,
        above_soft_seconds=account.seconds_above(now) if account else 0.0,
        service=tenant.service,
        num_preemptions=tenant.num_preemptions,
        recomputed_tokens=tenant.recomputed_tokens,
        trial=tenant.trial.counts() if tenant.trial is not None else (),
    )


def _changed_pairs(roster: Roster) -> tuple[PairCost, ...]:
    changed = roster.interference.take_changed(roster.memory.supply.take_taken())
    return tuple(
        PairCost(
            by=account_name(pair.by),
            of=account_name(pair.of),
            cached_blocks=cost.cached_blocks,
            num_preemptions=cost.num_preemptions,
            recomputed_tokens=cost.recomputed_tokens,
            swapped_bytes=cost.swapped_bytes,
        )
        for pair, cost in changed
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
