"""What crosses the border of the domain: frozen values, never ORM rows.

    KeyGrant      what a verified key may do; held by every web process, dropped when a NOTIFY says so
    PolicyView    a tenant's fleet-wide policy
    WorkerStats   a worker's last statistics as the controller publishes them (Redis, Channels)
    Actor         who makes a change; every service takes one
    UsageEntry    one request's usage as a worker metered it
    TenantView, ApiKeyView, ManagementKeyView, MemberView, ProjectView   rows as pages and the API show them
    CreatedKey, PolicyAcks, DemoAccess                                    answers of services and selectors

NOTIFY channels (payloads are small; the truth is in the tables):
    tollgate_policy   the new policy version
    tollgate_keys     "key:<key id>" or "tenant:<tenant id>": forget what you hold about it
    tollgate_workers  the id of the worker whose row changed
"""

from datetime import datetime
from typing import Literal

import msgspec

from tenants.authority import RoleName

POLICY_CHANNEL = "tollgate_policy"
KEYS_CHANNEL = "tollgate_keys"
WORKERS_CHANNEL = "tollgate_workers"

LIVE_GROUP = "tollgate.live"  # Channels group of operator hints
STATS_KEY = "tollgate:stats:{worker_id}"  # Redis: the last WorkerStats as JSON, expires 5 s after the last write
PREFIXES_KEY = "tollgate:prefixes:{worker_id}"  # Redis: [PrefixReading] as JSON, written when it changes, kept alive

SHADOW_KEY = "tollgate:shadow:{tenant_id}"  # Redis: a hash {"rpm:300": requests that this rate would have refused}
SHADOW_KEPT_SECONDS = 30 * 86400  # after the last of them

PriorityName = Literal["interactive", "standard", "batch"]

WORKER_LIVE_SECONDS = 30  # a worker whose heartbeat is older is not live; it sends one every 10 s
TENANT_COLOURS = 8  # length of the pages' colour-blind-safe order; `colour` is an index into it
API_KEY_SCOPES = ("generate", "models")  # generate: chat, completions, realtime; models: list them
MANAGEMENT_KEY_SCOPES = ("read", "write")


class Actor(msgspec.Struct, frozen=True):
    """Who makes a change. `id` is a user's or a key's id or the system part's name, `label` what the audit shows."""

    kind: Literal["user", "key", "system"]
    id: str
    label: str


class ShadowLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits on trial, by the names of PolicyView: counted, never enforced. None: not on trial."""

    kv_hard_bytes: int | None = None
    max_running: int | None = None
    max_queued: int | None = None
    max_context: int | None = None
    max_output: int | None = None
    rpm: int | None = None
    tpm: int | None = None


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's fleet-wide policy. Bytes are device KV; `*_tokens` are per request; `rpm`, `tpm` 0: no limit."""

    version: int
    weight: float
    kv_soft_bytes: int
    kv_hard_bytes: int
    max_running: int
    max_queued: int
    rpm: int
    tpm: int
    max_context: int  # tokens
    max_output: int  # tokens
    priority: PriorityName
    share_group: str = ""  # name of the group whose registered prefixes its requests share; empty: none
    host_bytes: int = 0  # ceiling in host RAM
    disk_bytes: int = 0  # ceiling on disk
    shadow: ShadowLimits = ShadowLimits()


class PrefixMessage(msgspec.Struct, frozen=True):
    """One message of a registered conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class SharedPrefixView(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix registered for a share group: either `messages` (a chat's beginning) or `text` (a prompt's).

    A chat's last message may go on in a request when it is the user's; every other one is whole.
    """

    id: str
    group: str
    name: str
    messages: tuple[PrefixMessage, ...] = ()
    text: str = ""
    tenant_id: str = ""  # whose owner registered it; empty: an operator
    tenant_slug: str = ""
    created_by: str  # the actor's label
    created_at: datetime
    version: int = 0  # of its group when it was registered: that version's acks say where it is in force
    num_bytes: int = 0  # UTF-8, of the text or of all messages' contents


class ShareGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A share group as pages and the API show it. Bytes are device KV, fleet-wide, on the group's own account."""

    name: str
    description: str
    version: int  # from the counter of policy versions
    kv_soft_bytes: int
    kv_hard_bytes: int
    num_prefixes: int
    tenants: tuple[str, ...]  # slugs of the members: their policies name the group
    created_at: datetime


class ShareGroupPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller pushes of a share group. `removed`: it is gone since `version`, the rest is empty."""

    name: str
    version: int
    namespace: bytes = b""  # 32 bytes, derived from the group's secret; never shown
    kv_soft_bytes: int = 0
    kv_hard_bytes: int = 0
    prefixes: tuple[SharedPrefixView, ...] = ()
    removed: bool = False


class KeyGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a verified `tg_live_` key may do. Hashable by `key_id`; holds no secret of the key."""

    key_id: str
    tenant_id: str
    tenant_slug: str
    project_id: str
    namespace: bytes  # 32 bytes, derived from the tenant's secret
    models: tuple[str, ...]  # public names; empty: all
    expires_at: float  # unix seconds; 0: never
    ip_ranges: tuple[str, ...]  # CIDR; empty: any
    rpm: int  # the key's own limits; 0: none
    tpm: int
    policy: PolicyView
    scopes: tuple[str, ...] = API_KEY_SCOPES  # a request outside them is a 403


class KeyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a new `tg_live_` key may do. Empty tuples and zeros mean no restriction; times are unix seconds."""

    project_id: str = ""  # empty: the tenant's `default` project, its oldest where that was renamed
    scopes: tuple[str, ...] = API_KEY_SCOPES
    models: tuple[str, ...] = ()
    expires_at: float = 0.0
    ip_ranges: tuple[str, ...] = ()
    rpm: int = 0
    tpm: int = 0


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as everybody who may see it sees it."""

    id: str
    slug: str
    name: str
    colour: int
    time_zone: str
    status: Literal["active", "suspended"]
    created_at: datetime


class ProjectView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's project."""

    id: str
    name: str
    created_at: datetime


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A user's role in a tenant."""

    user_id: int
    email: str
    name: str
    role: RoleName
    created_at: datetime


class ApiKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A `tg_live_` key without its secret."""

    id: str
    name: str
    prefix: str  # what identifies the key to a reader: tg_live_<id>
    project_id: str
    scopes: tuple[str, ...]
    models: tuple[str, ...]
    ip_ranges: tuple[str, ...]
    rpm: int
    tpm: int
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None
    created_by: str
    created_at: datetime
    status: Literal["active", "expired", "revoked"]


class ManagementKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A `tg_op_` or `tg_adm_` key without its secret."""

    id: str
    name: str
    prefix: str
    role: Literal["operator", "owner", "admin"]
    scopes: tuple[str, ...]
    ip_ranges: tuple[str, ...]
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None
    created_by: str
    created_at: datetime
    status: Literal["active", "expired", "revoked"]


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key; `secret` is the whole raw key and exists nowhere else."""

    key: ApiKeyView | ManagementKeyView
    secret: str


class WorkerAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's front posts at its start and as its heartbeat."""

    worker_id: str
    address: str
    model: str
    digest: str
    kv_bytes: int
    block_bytes: int
    max_context: int  # tokens


class PolicyVersionView(msgspec.Struct, frozen=True, kw_only=True):
    """One version in a tenant's history: the whole policy as it was then, and who made it so."""

    version: int
    policy: PolicyView
    changed_at: datetime
    changed_by: str  # the actor's label
    action: str  # of the audit trail: policy.changed, policy.reverted, boost.started, boost.ended, ...
    changed: tuple[str, ...] = ()  # fields that differ from the version before


class BoostView(msgspec.Struct, frozen=True, kw_only=True):
    """A change of some limits for a time. At its end each field that is still as the boost left it goes back."""

    id: str
    tenant_id: str
    tenant_slug: str
    changes: dict[str, object]  # field of PolicyView: value while it lasts
    before: dict[str, object]  # the same fields, value before
    reason: str
    started_at: datetime
    ends_at: datetime
    ended_at: datetime | None  # None: it is in force
    started_version: int
    ended_version: int | None  # None: in force, or nothing was left to put back
    created_by: str


class Overcommitment(msgspec.Struct, frozen=True, kw_only=True):
    """The guarantees of all tenants and share groups against the live workers' pools."""

    pool_bytes: int
    room_bytes: int  # what may be guaranteed without overcommit: the pool up to its low watermark
    guaranteed_bytes: int
    factor: float  # 0 to 1: what is left of each guarantee


class WorkerAck(msgspec.Struct, frozen=True, kw_only=True):
    """One live worker's ack of a policy version; times are None until it has applied it."""

    worker_id: str
    applied_at: datetime | None
    ms: float | None  # from the commit of the version
    settled_at: datetime | None = None  # nobody is above the limits any more
    over_bytes: int = 0  # above them when it was applied
    settle_seconds: float = 0.0  # how long it thought that it would take


class PolicyAcks(msgspec.Struct, frozen=True, kw_only=True):
    """How far a policy version has come: applied on `applied` of `of` live workers, the slowest after `ms`."""

    version: int
    tenant_id: str  # whose policy it was; empty: a share group's
    changed_at: datetime
    applied: int
    of: int
    ms: float | None  # None until every live worker has applied it
    workers: tuple[WorkerAck, ...]
    settled: int = 0  # on so many workers, of those that applied it
    share_group: str = ""  # name of the group whose version it was; empty: a tenant's


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request's usage as the worker metered it; fields as in `UsageRecord` of the worker protocol."""

    request_id: str
    tenant_id: str
    project_id: str
    key_id: str
    session: str
    model: str
    worker_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    kv_device_byte_seconds: float
    queue_seconds: float
    ttft_seconds: float
    started_at: float  # unix seconds
    finished_at: float
    finish_reason: str  # stop, length, cancelled, error
    num_preemptions: int


class DemoAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of one demo user; `api_key` is `tg_live_` for a tenant, `tg_op_` for the operator."""

    email: str
    password: str
    api_key: str
    slug: str = ""


class DemoAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of the demo: kept by the caller, given back at the next start."""

    operator: DemoAccount
    tenants: dict[str, DemoAccount]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as announced. `address` is what gRPC dials: `unix:/path` or `host:port`."""

    worker_id: str
    address: str
    model: str
    digest: str
    kv_bytes: int
    block_bytes: int
    max_context: int  # tokens
    last_seen_at: float  # unix seconds
    draining: bool


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
