"""Keys."""

from typing import Any

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Moment, Strict, Text, Whole, page_of
from tenants.contracts import API_KEY_SCOPES, MANAGEMENT_KEY_SCOPES
from tenants.rules.keys import MOST_ENTRIES
from tenants.rules.policy import MOST_COUNT
from tenants.services.keys import MOST_OVERLAP_SECONDS

ROLES = ("operator", "owner", "admin")
TENANT_ROLES = ("owner", "admin")
STATUSES = ("active", "expired", "revoked")


class _KeyAnswer(Answer):
    id = serializers.CharField()
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="what of the key may be shown")
    scopes = serializers.ListField(child=serializers.CharField())
    ip_ranges = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True, help_text="coarse: minutes late")
    replaced_by = serializers.CharField(allow_null=True)
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    status = serializers.ChoiceField(choices=STATUSES)


class ApiKeyAnswer(_KeyAnswer):
    """An API key, without its secret."""

    project_id = serializers.UUIDField()
    models = serializers.ListField(child=serializers.CharField(), help_text="empty: all")
    rpm = serializers.IntegerField(help_text="0: none of its own")
    tpm = serializers.IntegerField(help_text="0: none of its own")


class ApiKeyCreated(ApiKeyAnswer):
    """A new API key, with its secret: shown this once."""

    secret = serializers.CharField(help_text="the whole key; nothing can show it again")


class ManagementKeyAnswer(_KeyAnswer):
    """A management key, without its secret."""

    role = serializers.ChoiceField(choices=ROLES)


class ManagementKeyCreated(ManagementKeyAnswer):
    """A new management key, with its secret: shown this once."""

    secret = serializers.CharField(help_text="the whole key; nothing can show it again")


def _texts(length: int, **options: Any) -> serializers.ListField:
    return serializers.ListField(child=Text(max_length=length), max_length=MOST_ENTRIES, required=False, **options)


def _scopes(known: tuple[str, ...]) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.ChoiceField(choices=known), min_length=1, max_length=MOST_ENTRIES, required=False
    )


class _KeyCreate(Strict):
    name = Text(max_length=80)
    ip_ranges = _texts(64, help_text="addresses or CIDR ranges; empty: any")
    expires_at = Moment(required=False, allow_null=True)


class ApiKeyCreate(_KeyCreate):
    """A new API key."""

    project_id = serializers.UUIDField(
        required=False, help_text="without: the project `default`, the oldest where it was renamed"
    )
    scopes = _scopes(API_KEY_SCOPES)
    models = _texts(200, help_text="names of models; empty: all")
    rpm = Whole(min_value=0, max_value=MOST_COUNT, required=False)
    tpm = Whole(min_value=0, max_value=MOST_COUNT, required=False)


class ManagementKeyCreate(_KeyCreate):
    """A new management key of a tenant."""

    scopes = _scopes(MANAGEMENT_KEY_SCOPES)
    role = serializers.ChoiceField(choices=TENANT_ROLES, default="admin")


class OperatorKeyCreate(_KeyCreate):
    """A new management key of operators."""

    scopes = _scopes(MANAGEMENT_KEY_SCOPES)


class Rotation(Strict):
    """How long the old key goes on working."""

    overlap_seconds = Whole(min_value=0, max_value=MOST_OVERLAP_SECONDS, default=86400)


ApiKeyPage = page_of(ApiKeyAnswer, "ApiKey")
ManagementKeyPage = page_of(ManagementKeyAnswer, "ManagementKey")
