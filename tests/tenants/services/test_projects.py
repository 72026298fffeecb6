"""Creating and renaming projects."""

import uuid
from collections.abc import Callable

import pytest

from tenants import selectors
from tenants.contracts import Actor, TenantView
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import AuditEvent
from tenants.services.projects import create_project, rename_project


def test_a_project_is_created_and_renamed(tenant: TenantView, actor: Actor) -> None:
    """Both leave an audit row; a rename to the same name leaves none."""
    project = create_project(tenant_id=tenant.id, name=" mobile ", actor=actor)
    assert project.name == "mobile"
    for _ in range(2):
        rename_project(tenant_id=tenant.id, project_id=project.id, name="app", actor=actor)
    assert [seen.name for seen in selectors.projects(tenant.id)] == ["app", "default"]
    events = AuditEvent.objects.for_tenant(tenant.id).filter(target_kind="project").order_by("id")
    assert [event.action for event in events] == ["project.created", "project.renamed"]


def test_names_are_unique_within_a_tenant_only(make_tenant: Callable[..., TenantView], actor: Actor) -> None:
    """Two tenants may have projects of one name."""
    one, two = make_tenant("one"), make_tenant("two")
    project = create_project(tenant_id=one.id, name="app", actor=actor)
    create_project(tenant_id=two.id, name="app", actor=actor)
    with pytest.raises(Conflict, match="app"):
        create_project(tenant_id=one.id, name="app", actor=actor)
    with pytest.raises(Conflict, match="default"):
        rename_project(tenant_id=one.id, project_id=project.id, name="default", actor=actor)
    with pytest.raises(NotFound):
        rename_project(tenant_id=two.id, project_id=project.id, name="mine", actor=actor)


def test_wrong_values_are_refused(tenant: TenantView, actor: Actor) -> None:
    """A name must be one, and the tenant must exist."""
    with pytest.raises(Invalid, match="name"):
        create_project(tenant_id=tenant.id, name=" ", actor=actor)
    with pytest.raises(NotFound):
        create_project(tenant_id=uuid.uuid4(), name="app", actor=actor)
