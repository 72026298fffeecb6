"""What workers tell of themselves, as it crosses the border of the domain: now, over time, and of proposed limits.

WorkerStats                   a worker's last statistics as the controller publishes them (Redis, Channels)
SeriesBucket, ...Reading      ten seconds of it, as the controller writes them down
TenantSeries, PressureSeries, FairnessView   what is read of that
PreviewView                   what a proposal would have done to the last minutes of requests
"""

from datetime import datetime
from typing import Literal

import msgspec

from tenants.contracts import PolicyView

LIVE_GROUP = "tollgate.live"  # Channels group of operator hints
STATS_KEY = "tollgate:stats:{worker_id}"  # Redis: the last WorkerStats as JSON, expires 5 s after the last write
PREFIXES_KEY = "tollgate:prefixes:{worker_id}"  # Redis: [PrefixReading] as JSON, written when it changes, kept alive

SHADOW_KEY = "tollgate:shadow:{tenant_id}"  # Redis: a hash {"rpm:300": requests that this rate would have refused}
SHADOW_KEPT_SECONDS = 30 * 86400  # after the last of them


class ShadowCount(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that a limit on trial would have refused or delayed. `limit`: a field of ShadowLimits."""

    limit: str
    refused: int = 0
    delayed: int = 0


class ShadowReading(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on trial, its value, and what it would have done."""

    limit: str  # a field of ShadowLimits
    value: int
    refused: int = 0
    delayed: int = 0


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """How short a worker's memory is, and what makes it so: each 0 to 1."""

    score: float = 0.0
    use: float = 0.0
    borrowed: float = 0.0
    wait: float = 0.0
    swap: float = 0.0


class InterferencePair(msgspec.Struct, frozen=True, kw_only=True):
    """What one account's need has cost another. Accounts: a tenant's id, or "group:" and a share group's name."""

    by: str
    of: str
    cached_blocks: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_bytes: int = 0


class TenantUse(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's use of one worker."""

    tenant_id: str
    kv_bytes: int
    kv_cached_bytes: int = 0  # of `kv_bytes`, what no request holds
    kv_peak_bytes: int
    running: int
    queued: int
    output_tokens_per_second: float
    kv_borrowed_bytes: int = 0  # of `kv_bytes`, above the worker's share of the soft limit
    host_bytes: int = 0
    above_soft_seconds: float = 0.0  # this and the next five: since the core started
    service: float = 0.0  # weighted tokens, before the division by weight
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0
    shadow: tuple[ShadowCount, ...] = ()
    oldest_wait_seconds: float = 0.0  # now; 0: nobody waits
    weight: float = 1.0
    disk_bytes: int = 0
    num_sessions: int = 0


class ShareGroupUse(msgspec.Struct, frozen=True, kw_only=True):
    """One share group's use of one worker."""

    name: str
    kv_bytes: int
    kv_peak_bytes: int
    kv_cached_bytes: int
    num_prefixes: int
    prefix_tokens: int  # registered, in whole blocks


class PrefixReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a registered prefix is to one worker's model. `shared_tokens` are in whole blocks: what is shared."""

    prefix_id: str
    model: str
    num_tokens: int
    shared_tokens: int
    problem: str = ""  # why nothing of it is shared, and what to do


class TierTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks copied from one tier to another since the core started. Tiers: device, host, disk."""

    source: str
    target: str
    blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0  # that the copies took
    latencies: tuple[int, ...] = ()  # copies by how long each took: within each of LATENCY_MS, and longer


LATENCY_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class WorkerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's statistics, 4 a second."""

    worker_id: str
    at: float  # unix seconds
    core_ready: bool
    applied_version: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int = 0  # findable, held by no request
    block_bytes: int
    running: int
    queued: int
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    num_preemptions: int
    tenants: tuple[TenantUse, ...]
    share_groups: tuple[ShareGroupUse, ...] = ()
    core_started_at: float = 0.0  # unix seconds; counters count from here
    pressure: Pressure = Pressure()
    host_bytes_total: int = 0
    host_bytes_used: int = 0
    swapped_out_bytes: int = 0  # since the core started, as the next one
    swapped_in_bytes: int = 0
    # Pairs that changed since the stats before; one of zeros is forgotten, and counts from zero should it come back.
    interference: tuple[InterferencePair, ...] = ()
    disk_bytes_total: int = 0
    disk_bytes_used: int = 0
    disk_problem: str = ""  # why the disk is bypassed; empty: it is not
    disk_errors: int = 0  # this and all below: since the core started
    prefix_asked_tokens: int = 0  # of prompts when they were first admitted
    prefix_found_tokens: int = 0  # of them, those that were cached, in any tier
    traffic: tuple[TierTraffic, ...] = ()
    tier_hits: dict[str, int] = {}  # prompt tokens that were found, by tier
    tier_stall_seconds: float = 0.0  # that requests have waited for a tier
    prefetched_blocks: int = 0
    prefetched_used_blocks: int = 0
    swap_chosen: int = 0  # preempted sequences that were swapped
    recompute_chosen: int = 0
    num_sessions: int = 0  # now


class TenantCounters(msgspec.Struct, frozen=True, array_like=True):
    """What of a tenant's use only rises while a core lives."""

    above_soft_seconds: float = 0.0
    service: float = 0.0
    output_tokens: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0


class TenantReading(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant used of one worker within some seconds: means, peaks, and what its counters gained."""

    tenant_id: str
    weight: float
    kv_bytes: float
    kv_cached_bytes: float
    kv_borrowed_bytes: float
    kv_peak_bytes: int
    running: float
    queued: float
    oldest_wait_seconds: float
    gained: TenantCounters


class PressureReading(msgspec.Struct, frozen=True, kw_only=True):
    """How short one worker's memory was within some seconds: means, and the highest score."""

    mean: Pressure
    score_peak: float
    pool_use: float  # blocks that requests hold, as a share of the pool


class SeriesCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Where a core's counters stood at one moment."""

    core_started_at: float  # unix seconds: which core
    tenants: dict[str, TenantCounters]
    pairs: tuple[InterferencePair, ...]


class SeriesBucket(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker's statistics came to within ten seconds, as the time series keeps it."""

    worker_id: str
    at: float  # unix seconds, a multiple of ten
    covered: float  # seconds of it in which the worker was heard
    pressure: PressureReading
    tenants: tuple[TenantReading, ...]  # without idle ones
    interference: tuple[InterferencePair, ...]  # gained within
    counters: SeriesCounters  # at its end


class TenantPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant in one step of time, on all workers: means and peaks of what it held, and what it gained within."""

    at: datetime  # when the step begins
    weight: float
    kv_bytes: float
    kv_cached_bytes: float
    kv_borrowed_bytes: float
    kv_peak_bytes: int  # each worker's highest, together
    running: float
    queued: float
    oldest_wait_seconds: float
    above_soft_seconds: float
    service: float
    output_tokens: int
    num_preemptions: int
    recomputed_tokens: int


class TenantSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant over time; steps in which it was idle have no point."""

    tenant_id: str
    points: tuple[TenantPoint, ...]


class PressurePoint(msgspec.Struct, frozen=True, kw_only=True):
    """How short one worker's memory was in one step of time."""

    at: datetime
    score: float
    score_peak: float
    use: float
    borrowed: float
    wait: float
    swap: float
    pool_use: float


class PressureSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One worker over time; steps in which it was not heard have no point."""

    worker_id: str
    points: tuple[PressurePoint, ...]


class ServicePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The service that one tenant had in one step of time. `share`: by its weight."""

    at: datetime
    service: float
    share: float


class TenantService(msgspec.Struct, frozen=True, kw_only=True):
    """The service that one tenant had. `waited`: it had requests in its queue."""

    tenant_id: str
    service: float
    weight: float
    share: float
    waited: bool
    points: tuple[ServicePoint, ...]


class FairnessPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Jain's index over the tenants that were served or waited in one step of time; None: nothing was shared out."""

    at: datetime
    jain: float | None
    num_tenants: int


class FairnessView(msgspec.Struct, frozen=True, kw_only=True):
    """How even service was, over all the time and step by step."""

    jain: float | None
    num_tenants: int
    points: tuple[FairnessPoint, ...]
    tenants: tuple[TenantService, ...]


class PreviewFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant got, or would have got, in the time that was replayed, on all workers.

    Percentiles and the time above the guarantee are those of the worst worker.
    """

    num_requests: int = 0
    num_refused: int = 0  # could never fit, or found the queue full
    num_preemptions: int = 0
    evicted_blocks: int = 0  # cached ones, given up for others or for its own limits and needs
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    kv_peak_bytes: int = 0
    above_soft_seconds: float = 0.0
    ttft_p50_seconds: float = 0.0
    ttft_p99_seconds: float = 0.0
    queue_p99_seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Prompt tokens that were cached, as a share of all."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class TenantPreviewView(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant in a preview. `slug` is empty where the tenant is gone."""

    tenant_id: str
    slug: str
    name: str
    colour: int
    before: PreviewFigures  # replayed under the limits in force, so that the two can be compared
    after: PreviewFigures

    @property
    def is_idle(self) -> bool:
        """Whether it has asked for nothing in that time, so that nothing can be said of it."""
        return self.before.num_requests == 0


class WorkerPreviewView(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker has replayed. `problem`: why it has replayed nothing, or has not answered."""

    worker_id: str
    seconds: float = 0.0
    num_events: int = 0  # blocks that its requests came to
    elapsed_seconds: float = 0.0
    problem: str = ""


class PreviewView(msgspec.Struct, frozen=True, kw_only=True):
    """What a changed policy would have done to the requests of the last minutes, for every tenant that made any."""

    before: PolicyView
    after: PolicyView
    seconds: float  # that were replayed, by the worker that replayed most
    num_events: int
    elapsed_seconds: float  # that the answer took
    hit_rate_before: float
    hit_rate_after: float
    pressure_before: float  # mean score
    pressure_after: float
    tenants: tuple[TenantPreviewView, ...]  # the largest first; the policy's own always, where a worker has answered
    workers: tuple[WorkerPreviewView, ...]
    problem: str = ""  # why nothing could be replayed at all, else empty


# Hints that the live websocket carries: {"type": "hint", "kind": ..., "seq": n, ...}; `seq` rises by one per socket
# group and a client that sees a gap refetches.
#   kind "stats":   {"workers": [WorkerStats, ...]}
#   kind "policy":  {"tenant_id", "share_group", "version", "applied": n, "of": m, "ms": float, "settled": n,
#                   "settled_ms": float}   after each ack, and when a worker has settled; times are of the slowest that
#                   has told, from the commit; a version is a tenant's or a share group's (the other is empty); a
#                   group's comes once more when its prefixes, tokenised after its limits were sent, are in force
#   kind "workers": {}                                                                 the set of workers changed
HintKind = Literal["stats", "policy", "workers"]
