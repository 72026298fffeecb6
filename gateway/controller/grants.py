"""Divide fleet-wide limits into the grants of single workers: pure and deterministic.

A limit is split in proportion to the workers' pools, or to the shares that demand has earned (`demand.py`), by the
method of the largest remainder; ties go to the smaller worker id. Of requests at once each worker gets one first, where
there are as many: a worker with a small pool may be the only one of its model. The grants of a holder always sum to its
limit exactly, so n workers together never hold more than the policy says. One worker gets the policy itself. Rates
(`rpm`, `tpm`) are the gateway's and are not divided; limits of a single request are copied. A limit on trial is divided
like the limit whose place it would take.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.controller.holders import Grant, GroupGrant, GroupPolicy, Holder, Policy, ShadowGrant, TenantGrant
from tenants.contracts import PolicyView, PushedPolicy

Weights = Mapping[str, int]  # by worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """By which weights a holder's limits are split."""

    soft: Weights
    hard: Weights  # of all bytes but guaranteed ones
    running: Weights
    queued: Weights

    def covers(self, workers: Mapping[str, int]) -> bool:
        """Tell whether these are shares of exactly these workers."""
        return self.hard.keys() == workers.keys()


def by_pools(workers: Mapping[str, int]) -> Shares:
    """Return the shares of a holder that nobody knows more of: the workers' pools."""
    return Shares(soft=workers, hard=workers, running=workers, queued=workers)


def divide(policies: Mapping[Holder, Policy], workers: Mapping[str, int]) -> dict[str, dict[Holder, Grant]]:
    """Return {worker: {holder: grant}} for the fleet-wide `policies` and the `workers`' pools in bytes."""
    grants: dict[str, dict[Holder, Grant]] = {worker: {} for worker in workers}
    for holder, policy in policies.items():
        for worker, grant in divide_policy(policy, by_pools(workers)).items():
            grants[worker][holder] = grant
    return grants


def divide_policy(policy: Policy, shares: Shares) -> dict[str, Grant]:
    """Return {worker: grant} of one holder's policy."""
    hard = divide_limit(policy.kv_hard_bytes, shares.hard)
    # A worker that has been given little of the larger limit, or rounding, may leave no room for the smaller one.
    soft = {worker: min(part, hard[worker]) for worker, part in divide_limit(policy.kv_soft_bytes, shares.soft).items()}
    if isinstance(policy, GroupPolicy):
        return {
            worker: GroupGrant(
                namespace=policy.namespace,
                kv_soft_bytes=soft[worker],
                kv_hard_bytes=hard[worker],
                prefixes=policy.prefixes.get(worker, ()),
            )
            for worker in shares.hard
        }
    return _divide_tenant(policy, shares, soft, hard)


def _divide_tenant(
    policy: PolicyView, shares: Shares, soft: Mapping[str, int], hard: Mapping[str, int]
) -> dict[str, Grant]:
    running = divide_places(policy.max_running, shares.running)
    queued = divide_limit(policy.max_queued, shares.queued)
    host = divide_limit(policy.host_bytes, shares.hard)
    disk = divide_limit(policy.disk_bytes, shares.hard)
    shadow = _divide_shadow(policy, shares)
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
            host_bytes=host[worker],
            disk_bytes=disk[worker],
            shadow=shadow[worker],
            fleet_hard_bytes=policy.kv_hard_bytes,
            fleet_max_running=policy.max_running,
            disk_secret=policy.disk_secret if isinstance(policy, PushedPolicy) else b"",
        )
        for worker in shares.hard
    }


def _divide_shadow(policy: PolicyView, shares: Shares) -> dict[str, ShadowGrant]:
    shadow, none = policy.shadow, dict.fromkeys(shares.hard)
    hard = none if shadow.kv_hard_bytes is None else divide_limit(shadow.kv_hard_bytes, shares.hard)
    running = none if shadow.max_running is None else divide_places(shadow.max_running, shares.running)
    queued = none if shadow.max_queued is None else divide_limit(shadow.max_queued, shares.queued)
    return {
        worker: ShadowGrant(
            kv_hard_bytes=hard[worker],
            max_running=running[worker],
            max_queued=queued[worker],
            max_context=shadow.max_context,
            max_output=shadow.max_output,
        )
        for worker in shares.hard
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
