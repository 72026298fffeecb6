"""`tenants/{slug}/keys/`: API keys."""

from datetime import datetime
from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import rows
from tenants.api.pagination import Order
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.keys import ApiKeyAnswer, ApiKeyCreate, ApiKeyCreated, ApiKeyPage, Rotation
from tenants.api.view import ManagementView
from tenants.contracts import CreatedKey, KeyOptions
from tenants.models import ApiKey
from tenants.services.keys import create_api_key, revoke_key, rotate_key

NEWEST_FIRST = Order(columns=("created_at", "id"), kinds=(datetime, str))


class ApiKeyList(ManagementView):
    """A tenant's API keys."""

    @extend_schema(operation_id="keys_list", parameters=PAGE, responses={200: ApiKeyPage, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """List API keys, newest first, revoked ones included."""
        query = ApiKey.objects.for_tenant(self.tenant(slug).id)
        return self.page(query, NEWEST_FIRST, lambda row: ApiKeyAnswer(rows.api_key_view(row)).data)

    @extend_schema(operation_id="keys_create", request=ApiKeyCreate, responses={201: ApiKeyCreated, **ERRORS})
    def post(self, request: Request, slug: str) -> Response:
        """Create an API key. The answer carries the secret, this once."""
        tenant = self.tenant(slug, "keys.write")
        body = self.read(ApiKeyCreate)
        made = create_api_key(
            tenant_id=tenant.id, name=body.pop("name"), options=key_options(body), actor=self.caller.actor
        )
        return Response(with_secret(made, ApiKeyAnswer(made.key).data), status=201)


class ApiKeyDetail(ManagementView):
    """One API key."""

    @extend_schema(operation_id="keys_read", responses={200: ApiKeyAnswer, **ERRORS})
    def get(self, request: Request, slug: str, key_id: str) -> Response:
        """Read an API key; its secret is gone."""
        row = _find(self.tenant(slug).id, key_id)
        return Response(ApiKeyAnswer(rows.api_key_view(row)).data)

    @extend_schema(operation_id="keys_revoke", responses={204: None, **ERRORS})
    def delete(self, request: Request, slug: str, key_id: str) -> Response:
        """Revoke an API key at once. It stays in the list."""
        row = _find(self.tenant(slug, "keys.write").id, key_id)
        revoke_key(key_id=key_id, tenant_id=row.tenant_id, actor=self.caller.actor)
        return Response(status=204)


class ApiKeyRotation(ManagementView):
    """A successor of an API key."""

    @extend_schema(operation_id="keys_rotate", request=Rotation, responses={201: ApiKeyCreated, **ERRORS})
    def post(self, request: Request, slug: str, key_id: str) -> Response:
        """Create a key that may do the same; the old one works on for the overlap."""
        row = _find(self.tenant(slug, "keys.write").id, key_id)
        made = rotate_key(key_id=key_id, tenant_id=row.tenant_id, actor=self.caller.actor, **self.read(Rotation))
        return Response(with_secret(made, ApiKeyAnswer(made.key).data), status=201)


def key_options(body: dict[str, Any], **defaults: Any) -> KeyOptions:
    """Return the validated body of a new key as `KeyOptions`."""
    expires_at, project_id = body.pop("expires_at", None), body.pop("project_id", "")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in body.items()}
    return msgspec.structs.replace(
        KeyOptions(**defaults | values),
        expires_at=expires_at.timestamp() if expires_at else 0.0,
        project_id=str(project_id),
    )


def with_secret(made: CreatedKey, shown: dict[str, Any]) -> dict[str, Any]:
    """Return a key's answer with its secret."""
    return {**shown, "secret": made.secret}


def _find(tenant_id: str, key_id: str) -> ApiKey:
    row = ApiKey.objects.for_tenant(tenant_id).filter(pk=key_id).first()
    if row is None:
        raise NotFound(f"There is no API key {key_id}.")
    return row
