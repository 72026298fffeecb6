"""Divide fleet-wide limits into the grants of single workers: pure and deterministic.

A limit is split in proportion to the workers' pools by the method of the largest remainder; ties go to the smaller
worker id. Of requests at once each worker gets one first, where there are as many: a worker with a small pool may be
the only one of its model. The grants of a holder always sum to its limit exactly, so n workers together never hold more
than the policy says. One worker gets the policy itself. Rates (`rpm`, `tpm`) are the gateway's and are not divided;
limits of a single request are copied.
"""

from collections.abc import Mapping

from gateway.controller.holders import Grant, GroupGrant, GroupPolicy, Holder, Policy, TenantGrant
from tenants.contracts import PolicyView


def divide(policies: Mapping[Holder, Policy], workers: Mapping[str, int]) -> dict[str, dict[Holder, Grant]]:
    """Return {worker: {holder: grant}} for the fleet-wide `policies` and the `workers`' pools in bytes."""
    grants: dict[str, dict[Holder, Grant]] = {worker: {} for worker in workers}
    for holder, policy in policies.items():
        for worker, grant in divide_policy(policy, workers).items():
            grants[worker][holder] = grant
    return grants


def divide_policy(policy: Policy, workers: Mapping[str, int]) -> dict[str, Grant]:
    """Return {worker: grant} of one holder's policy; `workers` maps ids to pools in bytes."""
    hard = divide_limit(policy.kv_hard_bytes, workers)
    # Rounding may hand a worker one byte more of the smaller limit than of the larger.
    soft = {worker: min(part, hard[worker]) for worker, part in divide_limit(policy.kv_soft_bytes, workers).items()}
    if isinstance(policy, GroupPolicy):
        return {
            worker: GroupGrant(
                namespace=policy.namespace,
                kv_soft_bytes=soft[worker],
                kv_hard_bytes=hard[worker],
                prefixes=policy.prefixes.get(worker, ()),
            )
            for worker in workers
        }
    return _divide_tenant(policy, workers, soft, hard)


def _divide_tenant(
    policy: PolicyView, workers: Mapping[str, int], soft: Mapping[str, int], hard: Mapping[str, int]
) -> dict[str, Grant]:
    running = divide_places(policy.max_running, workers)
    queued = divide_limit(policy.max_queued, workers)
    return {
        worker: TenantGrant(
            weight=policy.weight,
            kv_soft_bytes=soft[worker],
            kv_hard_bytes=hard[worker],
            max_running=running[worker],
            max_queued=queued[worker],
            max_context=policy.max_context,
            max_output=policy.max_output,
            priority=policy.priority,
            share_groups=(policy.share_group,) if policy.share_group else (),
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
