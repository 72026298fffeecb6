"""`tenants/{slug}/management-keys/` and, for operators, `management-keys/`.

Management keys are made by people in a session; an operator's key may make them for tenants. A key never makes a key of
its own rank, so that a stolen one cannot outlive its revocation.
"""

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import rows
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.keys import (
    ManagementKeyAnswer,
    ManagementKeyCreate,
    ManagementKeyCreated,
    ManagementKeyPage,
    OperatorKeyCreate,
    Rotation,
)
from tenants.api.view import ManagementView
from tenants.api.views.keys import NEWEST_FIRST, key_options, with_secret
from tenants.authority import may
from tenants.contracts import MANAGEMENT_KEY_SCOPES
from tenants.models import ManagementKey, TenantQuerySet
from tenants.services.keys import create_management_key, revoke_key, rotate_key


class _Keys(ManagementView):
    """What the views share: whose keys they are, and who may touch them."""

    def scope(self, slug: str | None) -> str | None:
        """Return the tenant's id, None for the operators' own keys, if the caller may manage them."""
        if slug is None:
            self.operators_only()
            return None
        return self.tenant(slug, "manage").id

    def keys(self, tenant_id: str | None) -> TenantQuerySet[ManagementKey]:
        """Return the keys of a tenant, or the operators' own."""
        if tenant_id is not None:
            return ManagementKey.objects.for_tenant(tenant_id)
        return ManagementKey.objects.across_tenants().filter(tenant=None)

    def may_make(self, tenant_id: str | None, role: str) -> None:
        """Refuse a key that is not the caller's to make."""
        if self.caller.key is not None and (tenant_id is None or not self.caller.is_operator):
            raise PermissionDenied("A management key makes no key of its own rank: sign in to make one.")
        if role == "owner" and tenant_id and not may(self.caller.role_in(tenant_id), "owners.write"):
            raise PermissionDenied("Only an owner or an operator makes a key with the owner role.")

    def find(self, slug: str | None, key_id: str) -> ManagementKey:
        """Return a key in scope."""
        tenant_id = self.scope(slug)
        row = self.keys(tenant_id).filter(pk=key_id).first()
        if row is None:
            raise NotFound(f"There is no management key {key_id}.")
        return row


class ManagementKeyList(_Keys):
    """A tenant's management keys."""

    @extend_schema(operation_id="management_keys_list", parameters=PAGE, responses={200: ManagementKeyPage, **ERRORS})
    def get(self, request: Request, slug: str | None = None) -> Response:
        """List management keys, newest first."""
        query = self.keys(self.scope(slug))
        return self.page(query, NEWEST_FIRST, lambda row: ManagementKeyAnswer(rows.management_key_view(row)).data)

    @extend_schema(
        operation_id="management_keys_create",
        request=ManagementKeyCreate,
        responses={201: ManagementKeyCreated, **ERRORS},
    )
    def post(self, request: Request, slug: str | None = None) -> Response:
        """Create a management key. The answer carries the secret, this once."""
        tenant_id = self.scope(slug)
        body = self.read(OperatorKeyCreate if slug is None else ManagementKeyCreate)
        role = body.pop("role", "operator")
        self.may_make(tenant_id, role)
        made = create_management_key(
            name=body.pop("name"),
            role=role,
            tenant_id=tenant_id,
            options=key_options(body, scopes=MANAGEMENT_KEY_SCOPES),
            user=self.caller.user,
            actor=self.caller.actor,
        )
        return Response(with_secret(made, ManagementKeyAnswer(made.key).data), status=201)


class ManagementKeyDetail(_Keys):
    """One management key."""

    @extend_schema(operation_id="management_keys_revoke", responses={204: None, **ERRORS})
    def delete(self, request: Request, key_id: str, slug: str | None = None) -> Response:
        """Revoke a management key at once."""
        row = self.find(slug, key_id)
        revoke_key(key_id=row.pk, tenant_id=row.tenant_id, actor=self.caller.actor)
        return Response(status=204)


class ManagementKeyRotation(_Keys):
    """A successor of a management key."""

    @extend_schema(
        operation_id="management_keys_rotate", request=Rotation, responses={201: ManagementKeyCreated, **ERRORS}
    )
    def post(self, request: Request, key_id: str, slug: str | None = None) -> Response:
        """Create a key that may do the same; the old one works on for the overlap. A key may rotate itself."""
        row = self.find(slug, key_id)
        if self.caller.key is None or self.caller.key.pk != row.pk:
            self.may_make(None if row.tenant_id is None else str(row.tenant_id), row.role)
        made = rotate_key(key_id=row.pk, tenant_id=row.tenant_id, actor=self.caller.actor, **self.read(Rotation))
        return Response(with_secret(made, ManagementKeyAnswer(made.key).data), status=201)


class OperatorKeyDetail(ManagementKeyDetail):
    """One management key of operators."""

    @extend_schema(operation_id="operator_keys_revoke", responses={204: None, **ERRORS})
    def delete(self, request: Request, key_id: str, slug: str | None = None) -> Response:
        """Revoke an operator's management key at once."""
        return super().delete(request, key_id, None)


class OperatorKeyRotation(ManagementKeyRotation):
    """A successor of an operator's management key."""

    @extend_schema(
        operation_id="operator_keys_rotate", request=Rotation, responses={201: ManagementKeyCreated, **ERRORS}
    )
    def post(self, request: Request, key_id: str, slug: str | None = None) -> Response:
        """Create a key that may do the same; the old one works on for the overlap."""
        return super().post(request, key_id, None)


class OperatorKeyList(ManagementKeyList):
    """The operators' management keys."""

    @extend_schema(operation_id="operator_keys_list", parameters=PAGE, responses={200: ManagementKeyPage, **ERRORS})
    def get(self, request: Request, slug: str | None = None) -> Response:
        """List the operators' management keys, newest first."""
        return super().get(request, None)

    @extend_schema(
        operation_id="operator_keys_create", request=OperatorKeyCreate, responses={201: ManagementKeyCreated, **ERRORS}
    )
    def post(self, request: Request, slug: str | None = None) -> Response:
        """Create an operator's management key. The answer carries the secret, this once."""
        return super().post(request, None)
