"""Who holds limits, and what one worker is granted of them: tenants by their policies, share groups by theirs.

To the ledger both are holders: each has limits that the workers share, so each moves between workers in the same two
pushes. What else a grant says is copied.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from tenants.contracts import PolicyView, PriorityName


class Amounts(NamedTuple):
    """What workers share of a holder's limits."""

    kv_soft_bytes: int
    kv_hard_bytes: int
    max_running: int = 0
    max_queued: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0


NOTHING = Amounts(0, 0)


class Holder(NamedTuple):
    """A tenant, by its id, or a share group, by its name."""

    kind: Literal["tenant", "share_group"]
    name: str


def tenant(tenant_id: str) -> Holder:
    """Return a tenant as a holder."""
    return Holder("tenant", tenant_id)


def share_group(name: str) -> Holder:
    """Return a share group as a holder."""
    return Holder("share_group", name)


@dataclass(frozen=True, slots=True)
class PrefixTokens:
    """A registered prefix as one way to tokenise has it. A prefix never changes, so the two names tell all."""

    id: str
    form: str  # names the way to tokenise, see `prefixes.form_of`
    token_ids: "array[int]" = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy:
    """A share group's fleet-wide limits, and its prefixes for each worker whose tokens are known."""

    namespace: bytes  # 32 bytes
    kv_soft_bytes: int
    kv_hard_bytes: int
    prefixes: Mapping[str, tuple[PrefixTokens, ...]]  # by worker


Policy = PolicyView | GroupPolicy


def limits(policy: Policy) -> Amounts:
    """Return the fleet-wide limits that workers share."""
    if isinstance(policy, GroupPolicy):
        return Amounts(policy.kv_soft_bytes, policy.kv_hard_bytes)
    return Amounts(
        policy.kv_soft_bytes,
        policy.kv_hard_bytes,
        policy.max_running,
        policy.max_queued,
        policy.host_bytes,
        policy.disk_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowGrant:
    """One worker's share of a tenant's limits on trial. They bind nobody, so they are not among the amounts."""

    kv_hard_bytes: int | None = None
    max_running: int | None = None
    max_queued: int | None = None
    max_context: int | None = None
    max_output: int | None = None


NO_TRIAL = ShadowGrant()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantGrant:
    """One worker's share of one tenant's policy. Bytes are device KV, context and output tokens a request."""

    weight: float
    kv_soft_bytes: int
    kv_hard_bytes: int
    max_running: int
    max_queued: int
    max_context: int
    max_output: int
    priority: PriorityName
    share_groups: tuple[str, ...] = ()
    host_bytes: int = 0
    disk_bytes: int = 0
    shadow: ShadowGrant = NO_TRIAL
    fleet_hard_bytes: int = 0  # of all workers together, as the next one: what a request may wait for
    fleet_max_running: int = 0
    disk_secret: bytes = field(default=b"", repr=False)  # 32 bytes; empty: the disk is not encrypted

    @property
    def amounts(self) -> Amounts:
        """The part of the grant that counts against the fleet-wide limits."""
        return Amounts(
            self.kv_soft_bytes,
            self.kv_hard_bytes,
            self.max_running,
            self.max_queued,
            self.host_bytes,
            self.disk_bytes,
        )

    def with_amounts(self, amounts: Amounts) -> Self:
        """Return this grant holding `amounts`, soft bytes cut to the hard ones."""
        held = amounts._replace(kv_soft_bytes=min(amounts.kv_soft_bytes, amounts.kv_hard_bytes))
        return replace(self, **held._asdict())

    @property
    def num_tokens(self) -> int:
        """Token ids in it, which make a push long."""
        return 0

    def without_tokens(self) -> Self:
        """Return this grant with no token ids."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGrant:
    """One worker's share of one group's limits, and the group's prefixes by that worker's model."""

    namespace: bytes
    kv_soft_bytes: int
    kv_hard_bytes: int
    prefixes: tuple[PrefixTokens, ...] = ()

    @property
    def amounts(self) -> Amounts:
        """The part of the grant that counts against the fleet-wide limits."""
        return Amounts(self.kv_soft_bytes, self.kv_hard_bytes)

    def with_amounts(self, amounts: Amounts) -> Self:
        """Return this grant holding `amounts`, soft bytes cut to the hard ones."""
        hard = amounts.kv_hard_bytes
        return replace(self, kv_soft_bytes=min(amounts.kv_soft_bytes, hard), kv_hard_bytes=hard)

    @property
    def num_tokens(self) -> int:
        """Token ids in it, which make a push long."""
        return sum(len(prefix.token_ids) for prefix in self.prefixes)

    def without_tokens(self) -> Self:
        """Return this grant with no prefixes."""
        return replace(self, prefixes=())


Grant = TenantGrant | GroupGrant
