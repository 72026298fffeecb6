"""`If-Match` and `ETag`: a version, so that nobody overwrites what they have not read."""

import re

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.errors import PreconditionRequired

_ETAG = re.compile(r'"?([0-9]{1,18})"?', re.ASCII)


def if_match(*, required: bool) -> OpenApiParameter:
    """Return the header for the schema."""
    return OpenApiParameter(
        "If-Match",
        OpenApiTypes.STR,
        OpenApiParameter.HEADER,
        required=required,
        description='the version read, as "12"',
    )


def expected_version(request: Request) -> int:
    """Return the version that the caller has read.

    Raises:
        PreconditionRequired: the request has no `If-Match`.
        ValidationError: it is no version.
    """
    header = request.headers.get("If-Match")
    if header is None:
        raise PreconditionRequired('Send If-Match: "<version>" with the version that you have read.')
    match = _ETAG.fullmatch(header.strip())
    if match is None:
        raise ValidationError({"If-Match": 'Write the version that you have read, such as "12".'})
    return int(match[1])


def with_etag(response: Response, version: int) -> Response:
    """Return `response` with the version as its ETag."""
    response["ETag"] = f'"{version}"'
    return response
