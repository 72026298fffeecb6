"""What crosses the border of the domain: frozen values, never ORM rows.

    KeyGrant      what a verified key may do; held by every web process, dropped when a NOTIFY says so
    PolicyView    a tenant's fleet-wide policy
    PushedPolicy  the same with what only workers may know
    Actor         who makes a change; every service takes one
    UsageEntry    one request's usage as a worker metered it
    TenantView, ApiKeyView, ManagementKeyView, MemberView, ProjectView   rows as pages and the API show them
    CreatedKey, PolicyAcks, DemoAccess                                    answers of services and selectors

What workers tell, now and over time, is in `tenants.reports`.

NOTIFY channels (payloads are small; the truth is in the tables):
    tollgate_policy   the new policy version
    tollgate_keys     "key:<key id>" or "tenant:<tenant id>": forget what you hold about it
    tollgate_workers  the id of the worker whose row changed
    tollgate_responses  the id of a response in the background that is to stop: it was cancelled or deleted
"""

from datetime import datetime
from typing import Literal

import msgspec

from tenants.authority import RoleName

POLICY_CHANNEL = "tollgate_policy"
KEYS_CHANNEL = "tollgate_keys"
WORKERS_CHANNEL = "tollgate_workers"
RESPONSES_CHANNEL = "tollgate_responses"


PriorityName = Literal["interactive", "standard", "batch"]
ResponseStatusName = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

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
    encrypt_disk: bool = False  # what is on disk is encrypted with a secret of the tenant's own
    shadow: ShadowLimits = ShadowLimits()


class PushedPolicy(PolicyView, frozen=True, kw_only=True):
    """A policy as workers get it. Only the controller has it: the secret is in no answer, history, audit row or log."""

    disk_secret: bytes = b""  # 32 bytes; empty: the disk is not encrypted

    def __repr__(self) -> str:
        return f"PushedPolicy(version={self.version})"


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


class PendingErasure(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose KV a worker has yet to erase. `session` empty: all sessions of the tenant."""

    id: int
    tenant_id: str
    session: str
    worker_id: str
    requested_at: datetime
    requested_by: str  # the actor's label


class AbsentWorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is forgotten and may come back. `last_seen_at`: unix seconds."""

    worker_id: str
    last_seen_at: float


class ResponseOwner(msgspec.Struct, frozen=True):
    """Whose stored responses are meant: of one project of one tenant."""

    tenant_id: str
    project_id: str


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it is stored. `status` is what it is now; `document` is what its last writer said of it.

    `document` holds texts of a tenant: it is in no log.
    """

    id: str
    status: ResponseStatusName
    background: bool
    created_at: float  # unix seconds
    document: bytes

    def __repr__(self) -> str:
        return f"ResponseRecord(id={self.id!r}, status={self.status!r})"


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
