"""The policy that a worker enforces: its grant of each tenant's fleet-wide limits."""

from dataclasses import dataclass, field

from engine.request import Priority, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowLimits:
    """Limits on trial: what they would have refused or delayed is counted, nothing is. None: not on trial."""

    kv_hard_bytes: int | None = None
    max_running: int | None = None
    max_queued: int | None = None
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """Limits of one tenant on this worker. Bytes are device KV; `max_*_tokens` are per request; all are inclusive."""

    tenant: TenantId
    weight: float = 1.0
    kv_soft_bytes: int = 0
    kv_hard_bytes: int
    max_running: int
    max_queued: int
    max_context_tokens: int
    max_output_tokens: int
    priority: Priority = Priority.STANDARD
    share_groups: tuple[str, ...] = ()  # whose registered prefixes its requests may share
    host_bytes: int = 0  # ceiling in host RAM
    disk_bytes: int = 0  # ceiling on disk
    shadow: ShadowLimits | None = None
    fleet_hard_bytes: int = 0  # of all workers together; what fits it waits for the grant to follow. 0: no others
    fleet_max_running: int = 0
    disk_secret: bytes = field(default=b"", repr=False)  # 32 bytes: what is written to disk is encrypted with it;
    # empty: it is not
    disk_locked: bool = False  # its secret is still to come: what is on disk stays there, and nobody reads or writes


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """A prefix that an operator or owner has registered for a share group.

    Whole blocks of it are computed once for all tenants of the group, in the group's namespace and on its account.
    """

    group: str
    namespace: bytes  # the group's secret, never a tenant's
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroup:
    """A share group's account on this worker and its prefixes.

    What it holds within the soft limit is never taken for a tenant's need: one that covers its prefixes pins them.
    """

    name: str
    kv_soft_bytes: int
    kv_hard_bytes: int
    prefixes: tuple[SharedPrefix, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUpdate:
    """A snapshot (replaces everything) or a delta (replaces what it names), ordered by `(version, epoch)`."""

    version: int
    epoch: int
    snapshot: bool
    tenants: tuple[TenantPolicy, ...]
    removed: tuple[TenantId, ...] = ()
    share_groups: tuple[ShareGroup, ...] = ()
    removed_share_groups: tuple[str, ...] = ()
