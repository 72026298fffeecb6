"""`tenants/` and `tenants/{slug}/`."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import rows
from tenants.api.pagination import Order
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.tenants import TenantAnswer, TenantChange, TenantCreate, TenantPage
from tenants.api.view import ManagementView
from tenants.models import Tenant
from tenants.services.tenants import create_tenant, update_tenant

ORDER = Order(columns=("slug",), kinds=(str,), newest_first=False)


class TenantList(ManagementView):
    """All tenants that the caller may see."""

    @extend_schema(operation_id="tenants_list", parameters=PAGE, responses={200: TenantPage, **ERRORS})
    def get(self, request: Request) -> Response:
        """List tenants by slug."""
        visible = Tenant.objects.filter(pk__in=self.visible_tenant_ids())
        return self.page(visible, ORDER, lambda row: TenantAnswer(rows.tenant_view(row)).data)

    @extend_schema(operation_id="tenants_create", request=TenantCreate, responses={201: TenantAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        """Create a tenant. Operators only."""
        self.operators_only()
        body = self.read(TenantCreate)
        view = create_tenant(**body, actor=self.caller.actor)
        return Response(TenantAnswer(view).data, status=201)


class TenantDetail(ManagementView):
    """One tenant."""

    @extend_schema(operation_id="tenants_read", responses={200: TenantAnswer, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """Read a tenant."""
        return Response(TenantAnswer(self.tenant(slug)).data)

    @extend_schema(operation_id="tenants_change", request=TenantChange, responses={200: TenantAnswer, **ERRORS})
    def patch(self, request: Request, slug: str) -> Response:
        """Change a tenant's name or time zone (admins), or its status (operators)."""
        tenant = self.tenant(slug, "manage")
        changes = self.read(TenantChange)
        if "status" in changes:
            self.operators_only()
        view = update_tenant(tenant_id=tenant.id, changes=changes, actor=self.caller.actor)
        return Response(TenantAnswer(view).data)
