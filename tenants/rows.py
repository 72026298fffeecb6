"""Turn rows into the frozen values of `contracts`."""

import hashlib
import hmac
from typing import Literal, cast

import msgspec
from django.conf import settings

from tenants.authority import RoleName
from tenants.contracts import (
    ApiKeyView,
    BoostView,
    KeyGrant,
    ManagementKeyView,
    MemberView,
    PendingErasure,
    PolicyVersionView,
    PolicyView,
    PrefixMessage,
    PriorityName,
    ProjectView,
    PushedPolicy,
    ShadowLimits,
    SharedPrefixView,
    ShareGroupView,
    TenantView,
    WorkerView,
)
from tenants.errors import PepperMissing
from tenants.models import (
    ApiKey,
    Boost,
    ManagementKey,
    Membership,
    Policy,
    PolicyVersion,
    Project,
    SessionErasure,
    SharedPrefix,
    ShareGroup,
    Tenant,
    Worker,
)
from tenants.models.key import KeyFields

_NAMESPACE_LABEL = b"tollgate kv namespace v1"
_DISK_LABEL = b"tollgate kv disk v1"
_GROUP_NAMESPACE_LABEL = b"tollgate share group kv namespace v1"


def namespace(secret: bytes | memoryview) -> bytes:
    """Return a tenant's KV namespace, 32 bytes: derived from its secret, so that nobody outside can name it."""
    return hmac.new(bytes(secret), _NAMESPACE_LABEL, hashlib.sha256).digest()


def group_namespace(secret: bytes | memoryview) -> bytes:
    """Return a share group's KV namespace, 32 bytes; its own label keeps it from ever being a tenant's."""
    return hmac.new(bytes(secret), _GROUP_NAMESPACE_LABEL, hashlib.sha256).digest()


def policy_view(row: Policy) -> PolicyView:
    """Return a policy row as a value."""
    return PolicyView(
        version=row.version,
        weight=row.weight,
        kv_soft_bytes=row.kv_soft_bytes,
        kv_hard_bytes=row.kv_hard_bytes,
        max_running=row.max_running,
        max_queued=row.max_queued,
        rpm=row.rpm,
        tpm=row.tpm,
        max_context=row.max_context,
        max_output=row.max_output,
        priority=cast(PriorityName, str(row.priority)),
        share_group=row.share_group,
        host_bytes=row.host_bytes,
        disk_bytes=row.disk_bytes,
        encrypt_disk=row.encrypt_disk,
        shadow=msgspec.convert(row.shadow, ShadowLimits),
    )


def pushed_policy(row: Policy) -> PushedPolicy:
    """Return a policy row as workers get it.

    Raises:
        PepperMissing: the disk is encrypted, and this process lacks what its secret is derived with.
    """
    secret = disk_secret(row.disk_seed, settings.KEY_PEPPER) if row.encrypt_disk else b""
    return PushedPolicy(**msgspec.structs.asdict(policy_view(row)), disk_secret=secret)


def disk_secret(seed: bytes | memoryview, pepper: str) -> bytes:
    """Return the secret of a tenant's disk, 32 bytes: a stolen table holds the seed alone, which opens no stolen disk.

    Raises:
        PepperMissing: the pepper is empty.
    """
    if not pepper:
        raise PepperMissing("KEY_PEPPER is not set: a tenant's disk can't be encrypted")
    return hmac.new(pepper.encode(), _DISK_LABEL + bytes(seed), hashlib.sha256).digest()


def pending_erasure(row: SessionErasure) -> PendingErasure:
    """Return an erasure that waits for its worker as a value."""
    return PendingErasure(
        id=row.pk,
        tenant_id=str(row.tenant_id),
        session=row.session,
        worker_id=row.worker_id,
        requested_at=row.requested_at,
        requested_by=row.requested_by,
    )


def policy_version_view(row: PolicyVersion) -> PolicyVersionView:
    """Return one version of a tenant's history; it keeps the policy as it was."""
    return PolicyVersionView(
        version=row.version,
        policy=policy_of(row),
        changed_at=row.created_at,
        changed_by=row.changed_by,
        action=row.action,
        changed=tuple(row.changed),
    )


def policy_of(row: PolicyVersion) -> PolicyView:
    """Return the policy that a version of the history keeps. A field that came later has its first default."""
    return msgspec.convert(row.policy, PolicyView)


def boost_view(row: Boost) -> BoostView:
    """Return a boost as a value; expects `tenant` to be loaded."""
    return BoostView(
        id=str(row.id),
        tenant_id=str(row.tenant_id),
        tenant_slug=row.tenant.slug,
        changes=row.changes,
        before=row.before,
        reason=row.reason,
        started_at=row.started_at,
        ends_at=row.ends_at,
        ended_at=row.ended_at,
        started_version=row.started_version,
        ended_version=row.ended_version,
        created_by=row.created_by,
    )


def share_group_view(row: ShareGroup) -> ShareGroupView:
    """Return a live share group's row as a value, without its secret; expects `counted()` columns."""
    return ShareGroupView(
        name=row.name,
        description=row.description,
        version=row.version,
        kv_soft_bytes=row.kv_soft_bytes,
        kv_hard_bytes=row.kv_hard_bytes,
        num_prefixes=row.num_prefixes,
        tenants=tuple(row.member_slugs),
        created_at=row.created_at,
    )


def shared_prefix_view(row: SharedPrefix) -> SharedPrefixView:
    """Return a registered prefix as a value; expects `registered_by` to be loaded."""
    return SharedPrefixView(
        id=str(row.id),
        group=row.group_id,
        name=row.name,
        messages=msgspec.convert(row.messages, tuple[PrefixMessage, ...]),
        text=row.text,
        tenant_id=str(row.registered_by_id or ""),
        tenant_slug=row.registered_by.slug if row.registered_by else "",
        created_by=row.created_by,
        created_at=row.created_at,
        version=row.version,
        num_bytes=row.num_bytes,
    )


def anonymous(view: SharedPrefixView) -> SharedPrefixView:
    """Return a prefix as members other than its own see it: they share what it says, not who the others are."""
    return msgspec.structs.replace(view, tenant_id="", tenant_slug="", created_by="")


def key_grant(row: ApiKey) -> KeyGrant:
    """Return what a usable key may do; expects `tenant` and `tenant.policy` to be loaded."""
    return KeyGrant(
        key_id=row.id,
        tenant_id=str(row.tenant_id),
        tenant_slug=row.tenant.slug,
        project_id=str(row.project_id),
        namespace=namespace(row.tenant.secret),
        models=tuple(row.allowed_models),
        expires_at=row.expires_at.timestamp() if row.expires_at else 0.0,
        ip_ranges=tuple(row.ip_ranges),
        rpm=row.rpm,
        tpm=row.tpm,
        policy=policy_view(row.tenant.policy),
        scopes=tuple(row.scopes),
    )


def tenant_view(row: Tenant) -> TenantView:
    """Return a tenant row as a value, without its secret."""
    return TenantView(
        id=str(row.id),
        slug=row.slug,
        name=row.name,
        colour=row.colour,
        time_zone=row.time_zone,
        status="suspended" if row.status == "suspended" else "active",
        created_at=row.created_at,
    )


def project_view(row: Project) -> ProjectView:
    """Return a project row as a value."""
    return ProjectView(id=str(row.id), name=row.name, created_at=row.created_at)


def member_view(row: Membership) -> MemberView:
    """Return a membership row as a value; expects `user` to be loaded."""
    return MemberView(
        user_id=row.user_id,
        email=row.user.email,
        name=row.user.name,
        role=cast(RoleName, str(row.role)),
        created_at=row.created_at,
    )


def api_key_view(row: ApiKey) -> ApiKeyView:
    """Return an API key row as a value, without its digest."""
    return ApiKeyView(
        id=row.id,
        name=row.name,
        prefix=f"tg_live_{row.id}",
        project_id=str(row.project_id),
        scopes=tuple(row.scopes),
        models=tuple(row.allowed_models),
        ip_ranges=tuple(row.ip_ranges),
        rpm=row.rpm,
        tpm=row.tpm,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        replaced_by=row.replaced_by_id,
        created_by=row.created_by,
        created_at=row.created_at,
        status=key_status(row),
    )


def management_key_view(row: ManagementKey) -> ManagementKeyView:
    """Return a management key row as a value, without its digest."""
    return ManagementKeyView(
        id=row.id,
        name=row.name,
        prefix=f"tg_{'op' if row.tenant_id is None else 'adm'}_{row.id}",
        role=cast(Literal["operator", "owner", "admin"], row.role),
        scopes=tuple(row.scopes),
        ip_ranges=tuple(row.ip_ranges),
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        replaced_by=row.replaced_by_id,
        created_by=row.created_by,
        created_at=row.created_at,
        status=key_status(row),
    )


def key_status(row: KeyFields) -> Literal["active", "expired", "revoked"]:
    """Say in one word whether a key works."""
    if row.revoked_at is not None:
        return "revoked"
    return "active" if row.usable() else "expired"


def worker_view(row: Worker) -> WorkerView:
    """Return a worker row as a value."""
    return WorkerView(
        worker_id=row.id,
        address=row.address,
        model=row.model,
        digest=row.digest,
        kv_bytes=row.kv_bytes,
        block_bytes=row.block_bytes,
        max_context=row.max_context,
        last_seen_at=row.last_seen_at.timestamp(),
        draining=row.draining,
    )
