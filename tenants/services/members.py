"""Give, change and take roles."""

import uuid

from django.db import transaction

from tenants import rows
from tenants.authority import may
from tenants.contracts import Actor, MemberView
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import Membership, Tenant, User
from tenants.models.member import Role
from tenants.rules import values
from tenants.services.journal import Change, write_down


@transaction.atomic
def set_member(*, tenant_id: uuid.UUID | str, email: str, role: str, by_role: str, actor: Actor) -> MemberView:
    """Make a user a member, or change a member's role.

    Args:
        tenant_id: the tenant.
        email: of a user who exists.
        role: owner, admin, developer or viewer.
        by_role: the caller's own role: only an owner or an operator gives or takes the owner role.
        actor: who does it.

    Raises:
        Invalid: names the field and the fix.
        Forbidden: the caller's role does not reach.
        Conflict: the tenant would be left without an owner.
        NotFound: there is no such tenant.
    """
    wanted = values.choice("role", role, tuple(Role.values))
    address = values.text("email", email, longest=254).lower()
    _lock(tenant_id)
    user = User.objects.filter(email=address, is_active=True).first()
    if user is None:
        raise Invalid("email", "email must be that of a user who can sign in: an operator creates users")
    row = Membership.objects.for_tenant(tenant_id).select_related("user").filter(user=user).first()
    before = {"role": str(row.role)} if row else None
    _guard(tenant_id, str(row.role) if row else "", wanted, by_role)
    if row is None:
        row = Membership.objects.for_tenant(tenant_id).create(user=user, role=wanted)
    elif row.role != wanted:
        row.role = wanted
        row.save(update_fields=["role"])
    else:
        return rows.member_view(row)
    _write_down("member.set", row, actor, before=before, after={"role": wanted})
    return rows.member_view(row)


@transaction.atomic
def remove_member(*, tenant_id: uuid.UUID | str, user_id: int, by_role: str, actor: Actor) -> None:
    """Take a user's role away; management keys that hang on it stop working with it.

    Raises:
        Forbidden: the caller's role does not reach.
        Conflict: the tenant would be left without an owner.
        NotFound: that tenant has no such member.
    """
    _lock(tenant_id)
    row = Membership.objects.for_tenant(tenant_id).select_related("user").filter(user_id=user_id).first()
    if row is None:
        raise NotFound("there is no such member")
    _guard(tenant_id, str(row.role), "", by_role)
    _write_down("member.removed", row, actor, before={"role": str(row.role)}, after=None)
    row.delete()


def _guard(tenant_id: uuid.UUID | str, old: str, new: str, by_role: str) -> None:
    """Refuse what the caller's role does not reach, and what would leave no owner."""
    touches_owner = old != new and Role.OWNER.value in (old, new)
    if not may(by_role, "owners.write" if touches_owner else "manage"):
        raise Forbidden("only an owner or an operator gives or takes the owner role")
    if old == Role.OWNER.value != new:
        owners = Membership.objects.for_tenant(tenant_id).filter(role=Role.OWNER).count()
        if owners < 2:
            raise Conflict("this is the tenant's only owner: make somebody else an owner first")


def _lock(tenant_id: uuid.UUID | str) -> None:
    """Let one writer of a tenant's members in at a time, so that two owners cannot remove each other."""
    if Tenant.objects.select_for_update().filter(pk=tenant_id).first() is None:
        raise NotFound("there is no such tenant")


def _write_down(
    action: str, row: Membership, actor: Actor, *, before: dict[str, str] | None, after: dict[str, str] | None
) -> None:
    change = Change(
        action=action,
        target_kind="member",
        target_id=row.user.email[:128],
        tenant_id=row.tenant_id,
        before=before,
        after=after,
    )
    write_down(change, actor)
