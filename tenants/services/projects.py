"""Create and rename projects."""

import uuid

from django.db import transaction

from tenants import rows
from tenants.contracts import Actor, ProjectView
from tenants.errors import Conflict, NotFound
from tenants.models import Project, Tenant
from tenants.rules import values
from tenants.services.journal import Change, write_down


@transaction.atomic
def create_project(*, tenant_id: uuid.UUID | str, name: str, actor: Actor) -> ProjectView:
    """Create a project.

    Raises:
        Invalid: the name is empty or too long.
        Conflict: the tenant has one of that name.
        NotFound: there is no such tenant.
    """
    checked = values.text("name", name, longest=80)
    _lock(tenant_id)
    _refuse_taken(tenant_id, checked)
    row = Project.objects.for_tenant(tenant_id).create(name=checked)
    write_down(
        Change(
            action="project.created",
            target_kind="project",
            target_id=str(row.pk),
            tenant_id=row.tenant_id,
            after={"name": row.name},
        ),
        actor,
    )
    return rows.project_view(row)


@transaction.atomic
def rename_project(*, tenant_id: uuid.UUID | str, project_id: uuid.UUID | str, name: str, actor: Actor) -> ProjectView:
    """Rename a project.

    Raises:
        Invalid: the name is empty or too long.
        Conflict: the tenant has another of that name.
        NotFound: that tenant has no such project.
    """
    checked = values.text("name", name, longest=80)
    _lock(tenant_id)
    row = Project.objects.for_tenant(tenant_id).filter(pk=project_id).first()
    if row is None:
        raise NotFound("there is no such project")
    if row.name == checked:
        return rows.project_view(row)
    _refuse_taken(tenant_id, checked)
    before = {"name": row.name}
    row.name = checked
    row.save(update_fields=["name"])
    write_down(
        Change(
            action="project.renamed",
            target_kind="project",
            target_id=str(row.pk),
            tenant_id=row.tenant_id,
            before=before,
            after={"name": row.name},
        ),
        actor,
    )
    return rows.project_view(row)


def _lock(tenant_id: uuid.UUID | str) -> None:
    """Let one writer of a tenant's projects in at a time, so that the check for a taken name is final."""
    if Tenant.objects.select_for_update().filter(pk=tenant_id).first() is None:
        raise NotFound("there is no such tenant")


def _refuse_taken(tenant_id: uuid.UUID | str, name: str) -> None:
    if Project.objects.for_tenant(tenant_id).filter(name=name).exists():
        raise Conflict(f"there is a project {name!r} already: choose another name")
