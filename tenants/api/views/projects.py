"""`tenants/{slug}/projects/`."""

import uuid

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import rows
from tenants.api.pagination import Order
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.tenants import ProjectAnswer, ProjectPage, ProjectWrite
from tenants.api.view import ManagementView
from tenants.models import Project
from tenants.services.projects import create_project, rename_project

ORDER = Order(columns=("name",), kinds=(str,), newest_first=False)


class ProjectList(ManagementView):
    """A tenant's projects."""

    @extend_schema(operation_id="projects_list", parameters=PAGE, responses={200: ProjectPage, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """List projects by name."""
        query = Project.objects.for_tenant(self.tenant(slug).id)
        return self.page(query, ORDER, lambda row: ProjectAnswer(rows.project_view(row)).data)

    @extend_schema(operation_id="projects_create", request=ProjectWrite, responses={201: ProjectAnswer, **ERRORS})
    def post(self, request: Request, slug: str) -> Response:
        """Create a project."""
        tenant = self.tenant(slug, "manage")
        view = create_project(tenant_id=tenant.id, name=self.read(ProjectWrite)["name"], actor=self.caller.actor)
        return Response(ProjectAnswer(view).data, status=201)


class ProjectDetail(ManagementView):
    """One project."""

    @extend_schema(operation_id="projects_rename", request=ProjectWrite, responses={200: ProjectAnswer, **ERRORS})
    def patch(self, request: Request, slug: str, project_id: uuid.UUID) -> Response:
        """Rename a project."""
        tenant = self.tenant(slug, "manage")
        name = self.read(ProjectWrite)["name"]
        view = rename_project(tenant_id=tenant.id, project_id=project_id, name=name, actor=self.caller.actor)
        return Response(ProjectAnswer(view).data)
