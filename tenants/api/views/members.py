"""`tenants/{slug}/members/` and, for operators, `users/`."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import rows
from tenants.api.pagination import Order
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.tenants import (
    MemberAnswer,
    MemberPage,
    MemberWrite,
    UserAnswer,
    UserCreate,
    UserPage,
)
from tenants.api.view import ManagementView
from tenants.models import Membership, User
from tenants.services.members import remove_member, set_member
from tenants.services.users import create_user

BY_EMAIL = Order(columns=("email",), kinds=(str,), newest_first=False)
BY_MEMBER_EMAIL = Order(columns=("user__email",), kinds=(str,), newest_first=False)


class MemberList(ManagementView):
    """A tenant's members."""

    @extend_schema(operation_id="members_list", parameters=PAGE, responses={200: MemberPage, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """List members by e-mail."""
        query = Membership.objects.for_tenant(self.tenant(slug).id).select_related("user")
        return self.page(query, BY_MEMBER_EMAIL, lambda row: MemberAnswer(rows.member_view(row)).data)

    @extend_schema(operation_id="members_set", request=MemberWrite, responses={200: MemberAnswer, **ERRORS})
    def post(self, request: Request, slug: str) -> Response:
        """Make a user a member, or change a member's role. Only an owner gives or takes the owner role."""
        tenant = self.tenant(slug, "manage")
        body = self.read(MemberWrite)
        by_role = self.caller.role_in(tenant.id)
        view = set_member(tenant_id=tenant.id, **body, by_role=by_role, actor=self.caller.actor)
        return Response(MemberAnswer(view).data)


class MemberDetail(ManagementView):
    """One member."""

    @extend_schema(operation_id="members_remove", responses={204: None, **ERRORS})
    def delete(self, request: Request, slug: str, user_id: int) -> Response:
        """Remove a member; the last owner stays."""
        tenant = self.tenant(slug, "manage")
        by_role = self.caller.role_in(tenant.id)
        remove_member(tenant_id=tenant.id, user_id=user_id, by_role=by_role, actor=self.caller.actor)
        return Response(status=204)


class UserList(ManagementView):
    """All users. Operators only."""

    @extend_schema(operation_id="users_list", parameters=PAGE, responses={200: UserPage, **ERRORS})
    def get(self, request: Request) -> Response:
        """List users by e-mail."""
        self.operators_only()
        return self.page(User.objects.all(), BY_EMAIL, lambda row: UserAnswer(row).data)

    @extend_schema(operation_id="users_create", request=UserCreate, responses={201: UserAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        """Create a user, who then signs in with e-mail and password."""
        self.operators_only()
        return Response(UserAnswer(create_user(**self.read(UserCreate), actor=self.caller.actor)).data, status=201)
