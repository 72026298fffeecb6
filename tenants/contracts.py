"""What crosses the border of the domain: frozen values, never ORM rows.

    KeyGrant      what a verified key may do; held by every web process, dropped when a NOTIFY says so
    PolicyView    a tenant's fleet-wide policy
    WorkerStats   a worker's last statistics as the controller publishes them (Redis, Channels)

NOTIFY channels (payloads are small; the truth is in the tables):
    tollgate_policy   the new policy version
    tollgate_keys     "key:<key id>" or "tenant:<tenant id>": forget what you hold about it
    tollgate_workers  the id of the worker whose row changed
"""

from typing import Literal

import msgspec

POLICY_CHANNEL = "tollgate_policy"
KEYS_CHANNEL = "tollgate_keys"
WORKERS_CHANNEL = "tollgate_workers"

LIVE_GROUP = "tollgate.live"  # Channels group of operator hints
STATS_KEY = "tollgate:stats:{worker_id}"  # Redis: the last WorkerStats as JSON, expires 5 s after the last write

PriorityName = Literal["interactive", "standard", "batch"]


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's fleet-wide policy. Bytes are device KV; `*_tokens` are per request; 0 for `rpm` and `tpm` is no limit."""

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


class TenantUse(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's use of one worker."""

    tenant_id: str
    kv_bytes: int
    kv_peak_bytes: int
    running: int
    queued: int
    output_tokens_per_second: float


class WorkerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's statistics, 4 a second."""

    worker_id: str
    at: float  # unix seconds
    core_ready: bool
    applied_version: int
    blocks_total: int
    blocks_free: int
    block_bytes: int
    running: int
    queued: int
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    num_preemptions: int
    tenants: tuple[TenantUse, ...]


# Hints that the live websocket carries: {"type": "hint", "kind": ..., "seq": n, ...}; `seq` rises by one per socket group
# and a client that sees a gap refetches.
#   kind "stats":   {"workers": [WorkerStats, ...]}
#   kind "policy":  {"tenant_id", "version", "applied": n, "of": m, "ms": float}       after each ack
#   kind "workers": {}                                                                 the set of workers changed
HintKind = Literal["stats", "policy", "workers"]
