"""The base of the API's views: strict bodies, the caller's rights, pages."""

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from tenants import selectors
from tenants.api.authentication import Caller, caller_of
from tenants.api.pagination import KeysetPagination, Order
from tenants.api.parsing import JsonParser
from tenants.authority import Right, may
from tenants.contracts import TenantView
from tenants.models import Membership, Tenant

R = TypeVar("R", bound=Model)


class ManagementView(APIView):
    """A view of the management API."""

    parser_classes = (JsonParser,)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, and refuse a write with a key that only reads."""
        super().initial(request, *args, **kwargs)
        if request.method not in SAFE_METHODS and not self.caller.may_write:
            raise PermissionDenied("This key lacks the scope `write`.")

    @property
    def caller(self) -> Caller:
        """Who calls."""
        return caller_of(self.request)

    def tenant(self, slug: str, right: Right = "read") -> TenantView:
        """Return the tenant if the caller has `right` in it.

        Raises:
            NotFound: there is none, or the caller has no role in it: a stranger cannot tell which.
            PermissionDenied: the caller's role does not carry the right.
        """
        tenant = selectors.tenant(slug)
        role = self.caller.role_in(tenant.id) if tenant else ""
        if tenant is None or not role:
            raise NotFound("There is no such tenant.")
        if not may(role, right):
            raise PermissionDenied(f"The role {role} does not reach for this.")
        return tenant

    def visible_tenant_ids(self) -> "QuerySet[Tenant, uuid.UUID]":
        """Return the ids of the tenants that the caller may see, as a subquery."""
        ids = Tenant.objects.values_list("pk", flat=True)
        caller = self.caller
        if caller.is_operator:
            return ids
        if caller.key is not None:
            return ids.filter(pk__in=[caller.key.tenant_id])
        return ids.filter(pk__in=Membership.objects.across_tenants().filter(user=caller.user).values("tenant_id"))

    def operators_only(self) -> None:
        """Refuse everybody but operators."""
        if not self.caller.is_operator:
            raise PermissionDenied("Only operators may do this.")

    def read(self, serializer: type[Serializer[Any]], **options: Any) -> dict[str, Any]:
        """Return the body as `serializer` validates it."""
        checked = serializer(data=self.request.data, **options)
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def query(self, serializer: type[Serializer[Any]]) -> dict[str, Any]:
        """Return the query parameters as `serializer` validates them; unknown ones are refused, not ignored."""
        params = {key: value for key, value in self.request.query_params.items() if key not in ("limit", "cursor")}
        checked = serializer(data=params)
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def page(self, queryset: QuerySet[R], order: Order, show: Callable[[R], Any]) -> Response:
        """Return one page of `queryset`."""
        return KeysetPagination().page(queryset, self.request, order=order, show=show)
