"""The policy that this worker was given last: the merge of snapshots and deltas, and what the core has taken up."""

import math
from collections.abc import Iterable

from engine import ipc
from engine.errors import ProtocolError
from engine.protocol import pb
from engine.request import Priority

PRIORITY = {
    pb.PRIORITY_STANDARD: Priority.STANDARD,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BATCH: Priority.BATCH,
}


class PolicyBook:
    """Every tenant's grant, ordered by `(version, epoch)`. A new core gets it whole."""

    def __init__(self, saved: bytes | None = None) -> None:
        """Start empty, or from the serialised `snapshot` of an earlier process."""
        self._order = (-1, -1)
        self._tenants: dict[str, pb.TenantPolicy] = {}
        self.applied = pb.Applied()  # what the core confirmed last
        if saved is not None:
            self.take(pb.PolicyPush.FromString(saved))

    @property
    def tenants(self) -> Iterable[pb.TenantPolicy]:
        """The grants."""
        return self._tenants.values()

    @property
    def received(self) -> bool:
        """Whether there is a policy at all."""
        return self._order >= (0, 0)

    @property
    def order(self) -> tuple[int, int]:
        """Version and epoch of the newest push."""
        return self._order

    def take(self, push: pb.PolicyPush) -> bool:
        """Merge a push. Return False, and change nothing, when it is not newer than what is here.

        Raises:
            ProtocolError: a tenant of it cannot be served: a core would ignore the push as a whole.
        """
        for tenant in push.tenants:
            _check(tenant)
        if (push.version, push.epoch) <= self._order:
            return False
        if push.snapshot:
            self._tenants.clear()
        for removed in push.removed_tenants:
            self._tenants.pop(removed, None)
        for tenant in push.tenants:
            self._tenants[tenant.tenant] = tenant
        self._order = (push.version, push.epoch)
        return True

    def snapshot(self) -> pb.PolicyPush:
        """Return everything as one push; call it once there is a policy."""
        version, epoch = self._order
        return pb.PolicyPush(version=version, epoch=epoch, snapshot=True, tenants=self._tenants.values())


def policy_frame(push: pb.PolicyPush) -> ipc.PolicyFrame:
    """Return the core's form of a push."""
    return ipc.PolicyFrame(
        version=push.version,
        epoch=push.epoch,
        snapshot=push.snapshot,
        tenants=[_tenant(tenant) for tenant in push.tenants],
        removed=list(push.removed_tenants),
    )


def _check(policy: pb.TenantPolicy) -> None:
    if not policy.tenant:
        raise ProtocolError("a policy names no tenant")
    if not (math.isfinite(policy.weight) and policy.weight > 0):
        raise ProtocolError(f"weight {policy.weight} of tenant {policy.tenant} must be above 0")


def _tenant(policy: pb.TenantPolicy) -> ipc.PolicyTenant:
    return ipc.PolicyTenant(
        tenant=policy.tenant,
        weight=policy.weight,
        kv_soft_bytes=policy.kv_soft_bytes,
        kv_hard_bytes=policy.kv_hard_bytes,
        max_running=policy.max_running,
        max_queued=policy.max_queued,
        max_context_tokens=policy.max_context_tokens,
        max_output_tokens=policy.max_output_tokens,
        priority=PRIORITY.get(policy.priority, Priority.STANDARD),
    )
