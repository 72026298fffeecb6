"""What limits on trial would have done: the workers' counts and the gateway's, for one tenant."""

from collections import Counter

import msgspec

from tenants.console.readings import readings, shadow_counts
from tenants.contracts import PolicyView
from tenants.reports import ShadowReading


def trials(tenant_id: str, policy: PolicyView) -> tuple[ShadowReading, ...]:
    """Return each limit that is on trial with the requests that it would have refused or delayed.

    Workers count since their core started, the gateway since the limit was put on trial with this value. A worker that
    is away, or Redis, leaves out what it counted.
    """
    refused: Counter[str] = Counter()
    delayed: Counter[str] = Counter()
    for worker in readings().workers:
        for use in worker.tenants:
            if use.tenant_id == tenant_id:
                refused.update({count.limit: count.refused for count in use.shadow})
                delayed.update({count.limit: count.delayed for count in use.shadow})
    by_gateway = shadow_counts(tenant_id)
    found = []
    for limit, value in msgspec.structs.asdict(policy.shadow).items():
        if value is not None:
            counted = refused[limit] + by_gateway.get(f"{limit}:{value}", 0)
            found.append(ShadowReading(limit=limit, value=value, refused=counted, delayed=delayed[limit]))
    return tuple(found)
