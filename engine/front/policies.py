"""The policy that this worker was given last: the merge of snapshots and deltas, and what the core has taken up.

What is saved of it holds the namespaces of share groups, which are secrets. The secrets that tenants' slabs on disk are
encrypted with are not saved: beside the slabs they would open them, and outlive their own end in the control plane. A
worker that starts anew leaves what such a tenant has on disk alone until a controller has sent the secret again.
"""

import math
from collections.abc import Iterable

import structlog

from engine import ipc
from engine.errors import ProtocolError
from engine.protocol import pb
from engine.request import Priority

POLICY, SHARE_GROUPS = "policy", "share_groups"  # names of the parts that are saved
NAMESPACE_BYTES = 32
SECRET_BYTES = 32  # of what is on disk
_LOCKED = b"?"  # in place of a secret that is still to come

PRIORITY = {
    pb.PRIORITY_STANDARD: Priority.STANDARD,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BATCH: Priority.BATCH,
}

log = structlog.get_logger(part="policies")


class PolicyBook:
    """The grants of every tenant and share group, ordered by `(version, epoch)`. A new core gets them whole."""

    def __init__(self, policy: bytes | None = None, share_groups: bytes | None = None) -> None:
        """Start empty, or from the parts that an earlier process has saved."""
        self._order = (-1, -1)
        self._tenants: dict[str, pb.TenantPolicy] = {}
        self._share_groups: dict[str, pb.ShareGroup] = {}
        self._vocab_size: int | None = None  # until the model is known
        self.applied = pb.Applied()  # what the core confirmed last
        self.settled = pb.Settled()  # and when nobody was above its limits any more
        if policy is not None:
            self._merge(pb.PolicyPush.FromString(policy))
        if share_groups is not None:
            groups = pb.PolicyPush.FromString(share_groups).share_groups
            self._share_groups = {group.name: group for group in groups}
        self._groups_saved = True

    @property
    def tenants(self) -> Iterable[pb.TenantPolicy]:
        """The grants of tenants, without what is secret."""
        return [_without_secret(tenant) for tenant in self._tenants.values()]

    @property
    def share_groups(self) -> Iterable[pb.ShareGroup]:
        """The grants of share groups, without what is secret or long."""
        return [
            pb.ShareGroup(name=group.name, kv_soft_bytes=group.kv_soft_bytes, kv_hard_bytes=group.kv_hard_bytes)
            for group in self._share_groups.values()
        ]

    @property
    def received(self) -> bool:
        """Whether there is a policy at all."""
        return self._order >= (0, 0)

    @property
    def order(self) -> tuple[int, int]:
        """Version and epoch of the newest push."""
        return self._order

    def acks(self) -> list[pb.ControlEvent]:
        """Return what the core has said of the policy in force, for a controller that pushes no newer one."""
        told = [pb.ControlEvent(applied=self.applied)]
        if (self.settled.version, self.settled.epoch) == (self.applied.version, self.applied.epoch):
            told.append(pb.ControlEvent(settled=self.settled))
        return told

    def serve_model(self, vocab_size: int) -> None:
        """Refuse prefixes that are not of this model from now on, and drop those that were saved for another one."""
        self._vocab_size = vocab_size
        for group in self._share_groups.values():
            usable = [prefix for prefix in group.prefixes if max(prefix.token_ids, default=0) < vocab_size]
            if len(usable) < len(group.prefixes):
                log.warning("prefixes_of_another_model", share_group=group.name, kept=len(usable))
                del group.prefixes[:]
                group.prefixes.extend(usable)

    def take(self, push: pb.PolicyPush) -> bool:
        """Merge a push. Return False, and change nothing, when it is not newer than what is here.

        Raises:
            ProtocolError: a tenant or a group of it cannot be served: a core would ignore the push as a whole.
        """
        for tenant in push.tenants:
            _check(tenant)
        for group in push.share_groups:
            _check_group(group, self._vocab_size)
        if (push.version, push.epoch) <= self._order:
            return False
        self._merge(push)
        return True

    def snapshot(self) -> pb.PolicyPush:
        """Return everything as one push; call it once there is a policy."""
        push = self._order_alone()
        push.tenants.extend(self._tenants.values())
        push.share_groups.extend(self._share_groups.values())
        return push

    def unsaved(self) -> dict[str, bytes]:
        """Return the parts that have changed since the last call, to be saved at once.

        Grants of tenants move with demand, and groups, whose prefixes may be long, are not to be written each time.
        """
        parts = {POLICY: self._order_alone()}
        parts[POLICY].tenants.extend(_locked(tenant) for tenant in self._tenants.values())
        if not self._groups_saved:
            parts[SHARE_GROUPS] = pb.PolicyPush(share_groups=self._share_groups.values())
            self._groups_saved = True
        return {name: part.SerializeToString() for name, part in parts.items()}

    def _order_alone(self) -> pb.PolicyPush:
        version, epoch = self._order
        return pb.PolicyPush(version=version, epoch=epoch, snapshot=True)

    def _merge(self, push: pb.PolicyPush) -> None:
        if push.snapshot:
            self._tenants.clear()
            self._share_groups.clear()
        for removed in push.removed_tenants:
            self._tenants.pop(removed, None)
        for removed in push.removed_share_groups:
            self._share_groups.pop(removed, None)
        for tenant in push.tenants:
            self._tenants[tenant.tenant] = tenant
        for group in push.share_groups:
            self._share_groups[group.name] = group
        if push.snapshot or push.share_groups or push.removed_share_groups:
            self._groups_saved = False
        self._order = (push.version, push.epoch)


def policy_frame(push: pb.PolicyPush) -> ipc.PolicyFrame:
    """Return the core's form of a push."""
    return ipc.PolicyFrame(
        version=push.version,
        epoch=push.epoch,
        snapshot=push.snapshot,
        tenants=[_tenant(tenant) for tenant in push.tenants],
        removed=list(push.removed_tenants),
        share_groups=[_share_group(group) for group in push.share_groups],
        removed_share_groups=list(push.removed_share_groups),
    )


def _check(policy: pb.TenantPolicy) -> None:
    if not policy.tenant:
        raise ProtocolError("a policy names no tenant")
    if not (math.isfinite(policy.weight) and policy.weight > 0):
        raise ProtocolError(f"weight {policy.weight} of tenant {policy.tenant} must be above 0")
    if len(policy.disk_secret) not in (0, SECRET_BYTES):
        raise ProtocolError(
            f"the disk secret of tenant {policy.tenant} has {len(policy.disk_secret)} bytes instead of {SECRET_BYTES}"
        )


def _without_secret(policy: pb.TenantPolicy) -> pb.TenantPolicy:
    if not policy.disk_secret:
        return policy
    told = pb.TenantPolicy()
    told.CopyFrom(policy)
    told.ClearField("disk_secret")
    return told


def _locked(policy: pb.TenantPolicy) -> pb.TenantPolicy:
    """Return a policy as it is saved."""
    saved = _without_secret(policy)
    if saved is not policy:
        saved.disk_secret = _LOCKED
    return saved


def _check_group(group: pb.ShareGroup, vocab_size: int | None) -> None:
    if not group.name:
        raise ProtocolError("a share group has no name")
    if len(group.namespace) != NAMESPACE_BYTES:
        raise ProtocolError(
            f"the namespace of share group {group.name} has {len(group.namespace)} bytes instead of {NAMESPACE_BYTES}"
        )
    if group.kv_soft_bytes > group.kv_hard_bytes:
        raise ProtocolError(
            f"share group {group.name} has a soft limit of {group.kv_soft_bytes} bytes above its hard limit of"
            f" {group.kv_hard_bytes}"
        )
    for prefix in group.prefixes:
        if vocab_size is not None and max(prefix.token_ids, default=0) >= vocab_size:
            raise ProtocolError(
                f"prefix {prefix.id} of share group {group.name} has a token id >= {vocab_size}, the size of this"
                " model's vocabulary"
            )


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
        share_groups=list(policy.share_groups),
        host_bytes=policy.host_bytes,
        disk_bytes=policy.disk_bytes,
        shadow=_shadow(policy.shadow) if policy.HasField("shadow") else None,
        fleet_hard_bytes=policy.fleet_hard_bytes,
        fleet_max_running=policy.fleet_max_running,
        disk_secret=b"" if policy.disk_secret == _LOCKED else policy.disk_secret,
        disk_locked=policy.disk_secret == _LOCKED,
    )


def _shadow(limits: pb.ShadowLimits) -> ipc.ShadowLimits:
    return ipc.ShadowLimits(**{field.name: value for field, value in limits.ListFields()})


def _share_group(group: pb.ShareGroup) -> ipc.PolicyShareGroup:
    return ipc.PolicyShareGroup(
        name=group.name,
        namespace=group.namespace,
        kv_soft_bytes=group.kv_soft_bytes,
        kv_hard_bytes=group.kv_hard_bytes,
        prefixes=[list(prefix.token_ids) for prefix in group.prefixes],
    )
