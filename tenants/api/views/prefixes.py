"""`share-groups/{name}/prefixes/` for operators, `tenants/{slug}/prefixes/` for the people of a member."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.db.models import F, Func, IntegerField, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import selectors
from tenants.api.parsing import PrefixParser
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.share_groups import PrefixAnswer, PrefixCreate, PrefixPage, PrefixWhole
from tenants.api.view import ManagementView
from tenants.api.views.share_groups import BY_NAME
from tenants.authority import Right, may
from tenants.errors import Conflict
from tenants.models import SharedPrefix
from tenants.services.prefixes import register_prefix, remove_prefix


@dataclass(frozen=True, slots=True)
class _Scope:
    """Whose prefixes are meant, and for whom the caller acts."""

    group: str
    tenant_id: str  # empty: an operator, above tenants
    may_manage: bool

    def rows(self) -> QuerySet[SharedPrefix]:
        """Return the group's prefixes without their contents."""
        num_messages = Func(F("messages"), function="jsonb_array_length", output_field=IntegerField())
        query = SharedPrefix.objects.for_group(self.group).select_related("registered_by")
        return query.annotate(num_messages=num_messages).defer("messages", "text")

    def show(self, row: SharedPrefix) -> dict[str, Any]:
        """Return a row as the caller may see it: members share what it says, not who the others are."""
        is_own = not self.tenant_id or str(row.registered_by_id) == self.tenant_id
        return {
            **{name: getattr(row, name) for name in ("id", "name", "num_bytes", "sha256", "created_at", "version")},
            "group": row.group_id,
            "num_messages": row.num_messages,  # type: ignore[attr-defined]  # annotated by `rows`
            "tenant": row.registered_by.slug if row.registered_by and is_own else None,
            "created_by": row.created_by if is_own else None,
            "removable": is_own and self.may_manage,
        }


class _Prefixes(ManagementView):
    """What the views share: what is done, once it is known in which scope."""

    parser_classes = (PrefixParser,)

    def of_group(self, name: str) -> _Scope:
        """Return an operator's scope.

        Raises:
            PermissionDenied: the caller is no operator.
            NotFound: there is no such group.
        """
        self.operators_only()
        if selectors.share_group(name) is None:
            raise NotFound("There is no such share group.")
        return _Scope(name, "", may_manage=True)

    def of_tenant(self, slug: str, right: Right = "read") -> _Scope:
        """Return the scope of a member's people, if the caller has `right` in it.

        Raises:
            Conflict: the tenant is in no share group.
            NotFound: there is no such tenant for the caller.
            PermissionDenied: the caller's role does not reach.
        """
        tenant = self.tenant(slug, right)
        policy = selectors.policy(tenant.id)
        if policy is None or not policy.share_group:
            raise Conflict("the tenant is in no share group: an operator sets `share_group` in its policy")
        return _Scope(policy.share_group, tenant.id, may_manage=may(self.caller.role_in(tenant.id), "manage"))

    def find(self, scope: _Scope, prefix_id: uuid.UUID | str) -> SharedPrefix:
        """Return a prefix in scope."""
        row = scope.rows().filter(pk=prefix_id).first()
        if row is None:
            raise NotFound("There is no such prefix.")
        return row

    def listed(self, scope: _Scope) -> Response:
        """Answer with a page."""
        return self.page(scope.rows(), BY_NAME, lambda row: PrefixAnswer(scope.show(row)).data)

    def registered(self, scope: _Scope) -> Response:
        """Register what the body says."""
        body = self.read(PrefixCreate)
        made = register_prefix(
            group=scope.group,
            name=body.get("name", ""),
            messages=body.get("messages", ()),
            text=body.get("text", ""),
            tenant_id=scope.tenant_id,
            actor=self.caller.actor,
        )
        return Response(PrefixAnswer(scope.show(self.find(scope, made.id))).data, status=201)

    def whole(self, scope: _Scope, prefix_id: uuid.UUID) -> Response:
        """Answer with one prefix and its contents."""
        row = self.find(scope, prefix_id)
        return Response(PrefixWhole(scope.show(row) | {"messages": row.messages, "text": row.text}).data)

    def removed(self, scope: _Scope, prefix_id: uuid.UUID) -> Response:
        """Remove one prefix."""
        remove_prefix(group=scope.group, prefix_id=prefix_id, tenant_id=scope.tenant_id, actor=self.caller.actor)
        return Response(status=204)


class PrefixList(_Prefixes):
    """The prefixes of a share group. Operators only."""

    @extend_schema(operation_id="share_group_prefixes_list", parameters=PAGE, responses={200: PrefixPage, **ERRORS})
    def get(self, request: Request, name: str) -> Response:
        """List a share group's prefixes by name, without their contents."""
        return self.listed(self.of_group(name))

    @extend_schema(
        operation_id="share_group_prefixes_register", request=PrefixCreate, responses={201: PrefixAnswer, **ERRORS}
    )
    def post(self, request: Request, name: str) -> Response:
        """Register a prefix for a share group. All its members may read it: it is no secret among them."""
        return self.registered(self.of_group(name))


class PrefixDetail(_Prefixes):
    """One prefix of a share group. Operators only."""

    @extend_schema(operation_id="share_group_prefixes_read", responses={200: PrefixWhole, **ERRORS})
    def get(self, request: Request, name: str, prefix_id: uuid.UUID) -> Response:
        """Read a prefix with its contents."""
        return self.whole(self.of_group(name), prefix_id)

    @extend_schema(operation_id="share_group_prefixes_remove", responses={204: None, **ERRORS})
    def delete(self, request: Request, name: str, prefix_id: uuid.UUID) -> Response:
        """Remove a prefix, whoever registered it."""
        return self.removed(self.of_group(name), prefix_id)


class TenantPrefixList(_Prefixes):
    """The prefixes of a tenant's share group."""

    @extend_schema(operation_id="prefixes_list", parameters=PAGE, responses={200: PrefixPage, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """List the prefixes of the tenant's share group by name. 409 when the tenant is in none."""
        return self.listed(self.of_tenant(slug))

    @extend_schema(operation_id="prefixes_register", request=PrefixCreate, responses={201: PrefixAnswer, **ERRORS})
    def post(self, request: Request, slug: str) -> Response:
        """Register a prefix for the tenant's share group. All its members may read it: it is no secret among them.

        A tenant registers at most 16 of a group's 64 prefixes: a 409 then.
        """
        return self.registered(self.of_tenant(slug, "manage"))


class TenantPrefixDetail(_Prefixes):
    """One prefix of a tenant's share group."""

    @extend_schema(operation_id="prefixes_read", responses={200: PrefixWhole, **ERRORS})
    def get(self, request: Request, slug: str, prefix_id: uuid.UUID) -> Response:
        """Read a prefix of the tenant's share group with its contents."""
        return self.whole(self.of_tenant(slug), prefix_id)

    @extend_schema(operation_id="prefixes_remove", responses={204: None, **ERRORS})
    def delete(self, request: Request, slug: str, prefix_id: uuid.UUID) -> Response:
        """Remove a prefix that the tenant's own people registered; an operator's path removes any."""
        return self.removed(self.of_tenant(slug, "manage"), prefix_id)
