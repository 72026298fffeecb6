"""Who holds limits, and what one worker is granted of them: tenants by their policies, share groups by theirs.

To the ledger both are holders: each has limits that the workers share, so each moves between workers in the same two
pushes. What else a grant says is copied.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from tenants.contracts import PolicyView, PriorityName

Amounts = tuple[int, int, int, int]  # kv_soft_bytes, kv_hard_bytes, max_running, max_queued: what workers share
NOTHING: Amounts = (0, 0, 0, 0)


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
        return (policy.kv_soft_bytes, policy.kv_hard_bytes, 0, 0)
    return (policy.kv_soft_bytes, policy.kv_hard_bytes, policy.max_running, policy.max_queued)


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

    @property
    def amounts(self) -> Amounts:
        """The part of the grant that counts against the fleet-wide limits."""
        return (self.kv_soft_bytes, self.kv_hard_bytes, self.max_running, self.max_queued)

    def with_amounts(self, amounts: Amounts) -> Self:
        """Return this grant holding `amounts`, soft bytes cut to the hard ones."""
        soft, hard, running, queued = amounts
        return replace(self, kv_soft_bytes=min(soft, hard), kv_hard_bytes=hard, max_running=running, max_queued=queued)

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
        return (self.kv_soft_bytes, self.kv_hard_bytes, 0, 0)

    def with_amounts(self, amounts: Amounts) -> Self:
        """Return this grant holding `amounts`, soft bytes cut to the hard ones."""
        soft, hard, _, _ = amounts
        return replace(self, kv_soft_bytes=min(soft, hard), kv_hard_bytes=hard)

    @property
    def num_tokens(self) -> int:
        """Token ids in it, which make a push long."""
        return sum(len(prefix.token_ids) for prefix in self.prefixes)

    def without_tokens(self) -> Self:
        """Return this grant with no prefixes."""
        return replace(self, prefixes=())


Grant = TenantGrant | GroupGrant
