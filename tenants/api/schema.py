"""What the OpenAPI schema says of every operation: pages, errors, how to authenticate."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from tenants.api.pagination import DEFAULT_LIMIT, MOST

PAGE = [
    OpenApiParameter("limit", int, description=f"rows of a page, 1 to {MOST}; default {DEFAULT_LIMIT}"),
    OpenApiParameter("cursor", str, description="`next_cursor` of the page before"),
]


class ErrorDetail(serializers.Serializer[Any]):
    """What went wrong."""

    message = serializers.CharField(help_text="for people: what is wrong and how to put it right")
    type = serializers.CharField()
    param = serializers.CharField(allow_null=True, help_text="the field that it is about")
    code = serializers.CharField(help_text="for programs")


class ErrorAnswer(serializers.Serializer[Any]):
    """The one shape of errors."""

    error = ErrorDetail()


ERRORS: dict[str, type[ErrorAnswer]] = {"4XX": ErrorAnswer, "5XX": ErrorAnswer}


class ManagementKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # registers itself untyped
    """Describe management keys."""

    target_class = "tenants.api.authentication.ManagementKeyAuthentication"
    name = "managementKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        """Return the scheme."""
        return {"type": "http", "scheme": "bearer", "description": "tg_op_… or tg_adm_…"}
