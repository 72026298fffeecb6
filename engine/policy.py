"""The policy that a worker enforces: its grant of each tenant's fleet-wide limits."""

from dataclasses import dataclass

from engine.request import Priority, TenantId


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUpdate:
    """A snapshot (replaces everything) or a delta (replaces the tenants it names), ordered by `(version, epoch)`."""

    version: int
    epoch: int
    snapshot: bool
    tenants: tuple[TenantPolicy, ...]
    removed: tuple[TenantId, ...] = ()
