"""Reads: each returns frozen values of `contracts`. Async callers wrap them in `sync_to_async`."""

import uuid
from datetime import timedelta

import msgspec
from django.db.models import Min, Q, Sum
from django.utils import timezone

from tenants import rows
from tenants.authority import RoleName
from tenants.contracts import (
    WORKER_LIVE_SECONDS,
    ApiKeyView,
    KeyGrant,
    MemberView,
    PolicyAcks,
    PolicyView,
    ProjectView,
    SharedPrefixView,
    ShareGroupPolicy,
    ShareGroupView,
    TenantView,
    WorkerAck,
    WorkerView,
)
from tenants.models import (
    ApiKey,
    Membership,
    Policy,
    PolicyAck,
    PolicyCounter,
    PolicyVersion,
    Project,
    SharedPrefix,
    ShareGroup,
    Tenant,
    User,
    Worker,
)
from tenants.models.tenant import Status

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


def policy_acks(version: int) -> PolicyAcks | None:
    """Return how far a version has come on the live workers; None for a version that never was.

    An ack of a later version counts for every earlier one, at its own time.
    """
    made = PolicyVersion.objects.across_tenants().filter(version=version).first()
    if made is None:
        return None
    applied_at = dict(
        PolicyAck.objects.filter(version__gte=version)
        .values("worker_id")
        .annotate(at=Min("applied_at"))
        .values_list("worker_id", "at")
    )
    acks: list[WorkerAck] = []
    for worker in live_workers():
        at = applied_at.get(worker.worker_id)
        ms = None if at is None else max((at - made.created_at).total_seconds() * 1000, 0.0)
        acks.append(WorkerAck(worker_id=worker.worker_id, applied_at=at, ms=ms))
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
    )


def guaranteed_bytes() -> int:
    """Return the device KV bytes that are guaranteed to tenants and share groups together."""
    tenants = Policy.objects.across_tenants().aggregate(sum=Sum("kv_soft_bytes"))["sum"]
    groups = ShareGroup.objects.live().aggregate(sum=Sum("kv_soft_bytes"))["sum"]
    return int(tenants or 0) + int(groups or 0)


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


def served_models() -> list[str]:
    """Return the public names of the models that live workers serve, sorted."""
    return sorted(set(Worker.objects.filter(live()).values_list("model", flat=True)))


def pool_bytes() -> int:
    """Return the device KV bytes of all live workers together."""
    return int(Worker.objects.filter(live()).aggregate(sum=Sum("kv_bytes"))["sum"] or 0)
