"""Divide fleet-wide limits into the grants of single workers: pure and deterministic.

A limit is split in proportion to the workers' pools by the method of the largest remainder; ties go to the smaller
worker id. Of requests at once each worker gets one first, where there are as many: a worker with a small pool may be
the only one of its model. The grants of a tenant always sum to its limit exactly, so n workers together never hold more
than the policy says. One worker gets the policy itself. Rates (`rpm`, `tpm`) are the gateway's and are not divided;
limits of a single request are copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tenants.contracts import PolicyView, PriorityName

Amounts = tuple[int, int, int, int]  # kv_soft_bytes, kv_hard_bytes, max_running, max_queued: what workers share
NOTHING: Amounts = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One worker's share of one tenant's policy. Bytes are device KV, context and output tokens a request."""

    weight: float
    kv_soft_bytes: int
    kv_hard_bytes: int
    max_running: int
    max_queued: int
    max_context: int
    max_output: int
    priority: PriorityName

    @property
    def amounts(self) -> Amounts:
        """The part of the grant that counts against the fleet-wide limits."""
        return (self.kv_soft_bytes, self.kv_hard_bytes, self.max_running, self.max_queued)

    def with_amounts(self, amounts: Amounts) -> "Grant":
        """Return this grant holding `amounts`, soft bytes cut to the hard ones."""
        soft, hard, running, queued = amounts
        return replace(self, kv_soft_bytes=min(soft, hard), kv_hard_bytes=hard, max_running=running, max_queued=queued)


def limits(policy: PolicyView) -> Amounts:
    """Return the fleet-wide limits that workers share."""
    return (policy.kv_soft_bytes, policy.kv_hard_bytes, policy.max_running, policy.max_queued)


def divide(policies: Mapping[str, PolicyView], workers: Mapping[str, int]) -> dict[str, dict[str, Grant]]:
    """Return {worker: {tenant: grant}} for the fleet-wide `policies` and the `workers`' pools in bytes."""
    grants: dict[str, dict[str, Grant]] = {worker: {} for worker in workers}
    for tenant, policy in policies.items():
        for worker, grant in divide_policy(policy, workers).items():
            grants[worker][tenant] = grant
    return grants


def divide_policy(policy: PolicyView, workers: Mapping[str, int]) -> dict[str, Grant]:
    """Return {worker: grant} of one tenant's policy; `workers` maps ids to pools in bytes."""
    soft = divide_limit(policy.kv_soft_bytes, workers)
    hard = divide_limit(policy.kv_hard_bytes, workers)
    running = divide_places(policy.max_running, workers)
    queued = divide_limit(policy.max_queued, workers)
    return {
        worker: Grant(
            weight=policy.weight,
            # Rounding may hand a worker one byte more of the smaller limit than of the larger.
            kv_soft_bytes=min(soft[worker], hard[worker]),
            kv_hard_bytes=hard[worker],
            max_running=running[worker],
            max_queued=queued[worker],
            max_context=policy.max_context,
            max_output=policy.max_output,
            priority=policy.priority,
        )
        for worker in workers
    }


def divide_limit(limit: int, pools: Mapping[str, int]) -> dict[str, int]:
    """Split `limit` in proportion to `pools`; the parts sum to `limit` exactly. Pools that are all 0 count as equal."""
    if not pools:
        return {}
    sizes = pools if any(pools.values()) else dict.fromkeys(pools, 1)
    total = sum(sizes.values())
    parts = {worker: limit * size // total for worker, size in sizes.items()}
    rest = limit - sum(parts.values())
    if rest:
        by_remainder = sorted(sizes, key=lambda worker: (-(limit * sizes[worker] % total), worker))
        for worker in by_remainder[:rest]:
            parts[worker] += 1
    return parts


def divide_places(limit: int, pools: Mapping[str, int]) -> dict[str, int]:
    """Split `limit` like `divide_limit`, but leave no worker without a place as long as there is one for each."""
    if limit < len(pools):
        return divide_limit(limit, pools)
    rest = divide_limit(limit - len(pools), pools)
    return {worker: part + 1 for worker, part in rest.items()}
