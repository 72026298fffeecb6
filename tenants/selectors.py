"""Reads: each returns frozen values of `contracts`. Async callers wrap them in `sync_to_async`."""

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from django.db.models import Min, OuterRef, Q, Subquery, Sum
from django.utils import timezone

from tenants import rows
from tenants.authority import RoleName
from tenants.contracts import (
    WORKER_LIVE_SECONDS,
    ApiKeyView,
    BoostView,
    KeyGrant,
    MemberView,
    Overcommitment,
    PendingErasure,
    PolicyAcks,
    PolicyVersionView,
    PolicyView,
    ProjectView,
    PushedPolicy,
    SharedPrefixView,
    ShareGroupPolicy,
    ShareGroupView,
    TenantView,
    WorkerAck,
    WorkerView,
)
from tenants.models import (
    ApiKey,
    Boost,
    GrantShare,
    Membership,
    Policy,
    PolicyAck,
    PolicyCounter,
    PolicyVersion,
    Project,
    SessionErasure,
    SharedPrefix,
    ShareGroup,
    Tenant,
    User,
    Worker,
)
from tenants.models.tenant import Status
from tenants.rules.policy import LOW_WATERMARK, kept_part

# ---------------------------------------------------------------- keys


def grant_for_digest(digest: str) -> KeyGrant | None:
    """Return what the `tg_live_` key with this digest may do.

    None: the key is unknown, revoked or expired, or its tenant is suspended.
    """
    row = (
        ApiKey.objects.across_tenants()
        .select_related("tenant", "tenant__policy")
        .filter(digest=digest, tenant__status=Status.ACTIVE)
        .first()
    )
    return rows.key_grant(row) if row is not None and row.usable() else None


def api_keys(tenant_id: uuid.UUID | str) -> list[ApiKeyView]:
    """Return a tenant's API keys, newest first, revoked ones included."""
    return [rows.api_key_view(row) for row in ApiKey.objects.for_tenant(tenant_id).order_by("-created_at", "-id")]


# ---------------------------------------------------------------- tenants and people


def tenant(slug: str) -> TenantView | None:
    """Return the tenant with this slug."""
    row = Tenant.objects.filter(slug=slug).first()
    return rows.tenant_view(row) if row else None


def tenant_by_id(tenant_id: uuid.UUID | str) -> TenantView | None:
    """Return the tenant with this id."""
    row = Tenant.objects.filter(pk=tenant_id).first()
    return rows.tenant_view(row) if row else None


def tenants() -> list[TenantView]:
    """Return every tenant, by slug. For operators and the system."""
    return [rows.tenant_view(row) for row in Tenant.objects.order_by("slug")]


def tenants_of(user: User) -> list[TenantView]:
    """Return the tenants that a user may see, by slug: all for an operator, else those they are a member of."""
    if user.is_staff and user.is_active:
        return tenants()
    member_of = Membership.objects.across_tenants().filter(user=user).values("tenant_id")
    return [rows.tenant_view(row) for row in Tenant.objects.filter(pk__in=member_of).order_by("slug")]


def role_of(user: User, tenant_id: uuid.UUID | str) -> RoleName | None:
    """Return a user's role in a tenant: `operator` for an operator, None for a stranger or one who may not sign in."""
    if not user.is_active:
        return None
    if user.is_staff:
        return "operator"
    row = Membership.objects.for_tenant(tenant_id).select_related("user").filter(user=user).first()
    return rows.member_view(row).role if row else None


def members(tenant_id: uuid.UUID | str) -> list[MemberView]:
    """Return a tenant's members by e-mail."""
    query = Membership.objects.for_tenant(tenant_id).select_related("user").order_by("user__email")
    return [rows.member_view(row) for row in query]


def projects(tenant_id: uuid.UUID | str) -> list[ProjectView]:
    """Return a tenant's projects by name."""
    return [rows.project_view(row) for row in Project.objects.for_tenant(tenant_id).order_by("name")]


# ---------------------------------------------------------------- policy


def policy(tenant_id: uuid.UUID | str) -> PolicyView | None:
    """Return a tenant's policy."""
    row = Policy.objects.for_tenant(tenant_id).first()
    return rows.policy_view(row) if row else None


def policies(since_version: int = 0) -> list[tuple[str, PolicyView]]:
    """Return (tenant id, policy) of every tenant whose policy is newer than `since_version`, oldest change first.

    Commit order is version order, so the last version returned is a safe place to go on from.
    """
    query = Policy.objects.across_tenants().filter(version__gt=since_version).order_by("version")
    return [(str(row.tenant_id), rows.policy_view(row)) for row in query]


def policy_version() -> int:
    """Return the newest version of a policy or share group; 0 before the first.

    Whoever reads both goes on from the version that this returned *before* it read them: in between either may change.
    """
    return PolicyCounter.objects.values_list("value", flat=True).first() or 0


def policy_history(tenant_id: uuid.UUID | str, *, before: int | None = None, most: int = 50) -> list[PolicyVersionView]:
    """Return versions of a tenant's policy, newest first: those before a version, or the newest ones."""
    query = PolicyVersion.objects.for_tenant(tenant_id).filter(policy__isnull=False).order_by("-version")
    if before is not None:
        query = query.filter(version__lt=before)
    return [rows.policy_version_view(row) for row in query[:most]]


def boost(tenant_id: uuid.UUID | str) -> BoostView | None:
    """Return the boost that is in force for a tenant."""
    row = Boost.objects.for_tenant(tenant_id).filter(ended_at=None).select_related("tenant").first()
    return rows.boost_view(row) if row else None


def boosts_in_force() -> list[BoostView]:
    """Return every boost that is in force, next end first. For operators and the system."""
    query = Boost.objects.across_tenants().filter(ended_at=None).select_related("tenant").order_by("ends_at")
    return [rows.boost_view(row) for row in query]


def boosts(tenant_id: uuid.UUID | str, *, most: int = 50) -> list[BoostView]:
    """Return a tenant's boosts, newest first."""
    query = Boost.objects.for_tenant(tenant_id).select_related("tenant").order_by("-started_at", "-id")
    return [rows.boost_view(row) for row in query[:most]]


def grant_shares() -> dict[str, dict[str, tuple[float, float]]]:
    """Return the most that each worker may hold of tenants' limits: {tenant id: {worker: (of bytes, of places)}}.

    Tenants whose limits have only ever been divided by the workers' pools are not in it.
    """
    columns = GrantShare.objects.across_tenants().values_list("tenant_id", "shares")
    return {str(tenant_id): msgspec.convert(shares, dict[str, tuple[float, float]]) for tenant_id, shares in columns}


def next_boost_end() -> datetime | None:
    """Return when the next boost ends, or should have."""
    in_force = Boost.objects.across_tenants().filter(ended_at=None).order_by("ends_at")
    return in_force.values_list("ends_at", flat=True).first()


def policy_acks(version: int) -> PolicyAcks | None:
    """Return how far a version has come on the live workers; None for a version that never was.

    An ack of a later version counts for every earlier one, at its own time; so does its having settled.
    """
    made = PolicyVersion.objects.across_tenants().filter(version=version).first()
    if made is None:
        return None
    found = _acks_since(made)
    none = {one.worker_id: WorkerAck(worker_id=one.worker_id, applied_at=None, ms=None) for one in live_workers()}
    acks = [found.get(worker_id, ack) for worker_id, ack in none.items()]
    times = [ack.ms for ack in acks if ack.ms is not None]
    return PolicyAcks(
        version=version,
        tenant_id=str(made.tenant_id or ""),
        share_group=made.share_group,
        changed_at=made.created_at,
        applied=len(times),
        of=len(acks),
        ms=max(times) if acks and len(times) == len(acks) else None,
        workers=tuple(acks),
        settled=sum(ack.settled_at is not None for ack in acks),
    )


def _acks_since(made: PolicyVersion) -> dict[str, WorkerAck]:
    """Return each worker's first ack of a version or a later one, with the time at which any of these had settled."""
    acks = PolicyAck.objects.filter(version__gte=made.version)
    settled = acks.filter(worker=OuterRef("worker")).order_by().values("worker").annotate(at=Min("settled_at"))
    first = acks.order_by("worker_id", "applied_at", "version").distinct("worker_id")
    columns = first.values_list(
        "worker_id", "applied_at", "over_bytes", "settle_seconds", Subquery(settled.values("at"))
    )
    return {
        worker_id: WorkerAck(
            worker_id=worker_id,
            applied_at=applied_at,
            ms=max((applied_at - made.created_at).total_seconds() * 1000, 0.0),
            settled_at=settled_at,
            over_bytes=over_bytes,
            settle_seconds=settle_seconds,
        )
        for worker_id, applied_at, over_bytes, settle_seconds, settled_at in columns
    }


def guaranteed_bytes() -> int:
    """Return the device KV bytes that are guaranteed to tenants and share groups together.

    A guarantee that a boost has lowered for a time stays promised: it must fit when the boost ends.
    """
    tenants = Policy.objects.across_tenants().aggregate(sum=Sum("kv_soft_bytes"))["sum"]
    groups = ShareGroup.objects.live().aggregate(sum=Sum("kv_soft_bytes"))["sum"]
    return int(tenants or 0) + int(groups or 0) + _kept_for_boosts()


def promised_bytes(tenant_id: uuid.UUID | str, kv_soft_bytes: int) -> int:
    """Return what a tenant's part of `guaranteed_bytes` is, while its policy guarantees `kv_soft_bytes`."""
    boost = Boost.objects.for_tenant(tenant_id).filter(ended_at=None, before__has_key="kv_soft_bytes").first()
    return kv_soft_bytes if boost is None else max(kv_soft_bytes, boost.before["kv_soft_bytes"])


def _kept_for_boosts() -> int:
    """Return what the guarantees that boosts have lowered will rise by at their ends."""
    lowered = Boost.objects.across_tenants().filter(ended_at=None, before__has_key="kv_soft_bytes")
    pairs = lowered.values_list("before__kv_soft_bytes", "tenant__policy__kv_soft_bytes")
    return sum(max(0, int(before) - now) for before, now in pairs)


def overcommitment() -> Overcommitment:
    """Return how the guarantees compare with what the live workers can keep, and what is left of each."""
    pool, guaranteed = pool_bytes(), guaranteed_bytes()
    return Overcommitment(
        pool_bytes=pool,
        room_bytes=int(pool * LOW_WATERMARK),
        guaranteed_bytes=guaranteed,
        factor=kept_part(guaranteed, pool),
    )


def pushed_policies(since_version: int = 0) -> list[tuple[str, PushedPolicy]]:
    """Return what `policies` does, as workers get it. For the controller alone: it has the tenants' secrets."""
    query = Policy.objects.across_tenants().filter(version__gt=since_version).order_by("version")
    return [(str(row.tenant_id), rows.pushed_policy(row)) for row in query]


# ---------------------------------------------------------------- share groups


def share_groups() -> list[ShareGroupView]:
    """Return every share group, by name. For operators and the system."""
    return [rows.share_group_view(row) for row in ShareGroup.objects.live().counted().order_by("name")]


def share_group(name: str) -> ShareGroupView | None:
    """Return the share group of this name."""
    row = ShareGroup.objects.live().counted().filter(name=name).first()
    return rows.share_group_view(row) if row else None


def shared_prefixes(group: str, seen_by: uuid.UUID | str = "") -> list[SharedPrefixView]:
    """Return the prefixes that are registered for a group, by name, with their contents.

    Args:
        group: the group's name.
        seen_by: the member tenant whose people look: who else registered what is left empty; empty: an operator looks.
    """
    query = SharedPrefix.objects.for_group(group).select_related("registered_by").order_by("name")
    views = [rows.shared_prefix_view(row) for row in query]
    return [view if view.tenant_id == str(seen_by) or not seen_by else rows.anonymous(view) for view in views]


def shared_prefix(prefix_id: uuid.UUID | str) -> SharedPrefixView | None:
    """Return a registered prefix, with its contents. For operators and the system."""
    row = SharedPrefix.objects.across_groups().select_related("registered_by").filter(pk=prefix_id).first()
    return rows.shared_prefix_view(row) if row else None


def share_group_policies(since_version: int = 0, *, contents: bool = True) -> list[ShareGroupPolicy]:
    """Return every share group that is newer than `since_version`, whole, oldest change first.

    One statement, so that a group's version and prefixes are of one moment. With `since_version` > 0 removed groups are
    among them: whoever knew them forgets them. Without `contents` the prefixes' messages and texts are left empty: a
    group may have 16 MiB of them, and `shared_prefix` gets each when it is wanted.
    """
    known = ShareGroup.objects.all() if since_version > 0 else ShareGroup.objects.live()
    query = known.with_prefixes(contents=contents).filter(version__gt=since_version).order_by("version")
    return [_group_policy(row) for row in query]


def _group_policy(row: ShareGroup) -> ShareGroupPolicy:
    if row.removed:
        return ShareGroupPolicy(name=row.name, version=row.version, removed=True)
    return ShareGroupPolicy(
        name=row.name,
        version=row.version,
        namespace=rows.group_namespace(row.secret),
        kv_soft_bytes=row.kv_soft_bytes,
        kv_hard_bytes=row.kv_hard_bytes,
        prefixes=msgspec.convert(row.prefix_values, tuple[SharedPrefixView, ...]),
    )


# ---------------------------------------------------------------- workers


def live() -> Q:
    """Return the condition for a worker with a recent heartbeat."""
    return Q(last_seen_at__gt=timezone.now() - timedelta(seconds=WORKER_LIVE_SECONDS))


def live_workers() -> list[WorkerView]:
    """Return the workers with a recent heartbeat, by id; draining ones included."""
    return [rows.worker_view(row) for row in Worker.objects.filter(live()).order_by("id")]


def known_workers() -> list[WorkerView]:
    """Return the workers that are not forgotten, by id: the live ones, and those that have been away for a while."""
    return [rows.worker_view(row) for row in Worker.objects.order_by("id")]


def served_models() -> list[str]:
    """Return the public names of the models that live workers serve, sorted."""
    return sorted(set(Worker.objects.filter(live()).values_list("model", flat=True)))


def pool_bytes() -> int:
    """Return the device KV bytes of all live workers together."""
    return int(Worker.objects.filter(live()).aggregate(sum=Sum("kv_bytes"))["sum"] or 0)


# ---------------------------------------------------------------- sessions


def pending_erasures(worker_ids: Sequence[str], *, began_before: datetime, most: int) -> list[PendingErasure]:
    """Return erasures of sessions that wait for these workers, the oldest first. For the system."""
    query = SessionErasure.objects.across_tenants().filter(worker_id__in=worker_ids, requested_at__lt=began_before)
    return [rows.pending_erasure(row) for row in query.order_by("pk")[:most]]
