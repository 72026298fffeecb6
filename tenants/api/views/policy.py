"""`tenants/{slug}/policy/` and `policy-versions/{version}/acks/`."""

import re

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import selectors
from tenants.api.errors import PreconditionRequired
from tenants.api.schema import ERRORS
from tenants.api.serializers.policy import AcksAnswer, PolicyAnswer, PolicyChange
from tenants.api.view import ManagementView
from tenants.contracts import PolicyView
from tenants.services.policy import set_policy

_ETAG = re.compile(r'"?([0-9]{1,18})"?', re.ASCII)
IF_MATCH = OpenApiParameter(
    "If-Match", OpenApiTypes.STR, OpenApiParameter.HEADER, required=True, description='the version read, as "12"'
)


class PolicyDetail(ManagementView):
    """A tenant's policy."""

    @extend_schema(operation_id="policy_read", responses={200: PolicyAnswer, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """Read the policy. Its ETag is the version that a change has to name."""
        policy = selectors.policy(self.tenant(slug).id)
        if policy is None:
            raise NotFound("This tenant has no policy.")
        return _answer(policy)

    @extend_schema(
        operation_id="policy_change",
        parameters=[IF_MATCH],
        request=PolicyChange,
        responses={200: PolicyAnswer, 412: ERRORS["4XX"], 428: ERRORS["4XX"], **ERRORS},
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change the policy if it still is at the version in `If-Match`. Operators only."""
        tenant = self.tenant(slug)
        self.operators_only()
        changes = self.read(PolicyChange)
        overcommit = changes.pop("overcommit", False)
        if not isinstance(overcommit, bool):
            raise ValidationError({"overcommit": "Write true or false."})
        policy = set_policy(
            tenant_id=tenant.id,
            expected_version=_expected(request),
            changes=changes,
            actor=self.caller.actor,
            overcommit=overcommit,
        )
        return _answer(policy)


class PolicyVersionAcks(ManagementView):
    """How far a version has come."""

    @extend_schema(operation_id="policy_acks", responses={200: AcksAnswer, **ERRORS})
    def get(self, request: Request, version: int) -> Response:
        """Read which live workers have applied a version, and how fast."""
        acks = selectors.policy_acks(version)
        if acks is None or not self.caller.role_in(acks.tenant_id):
            raise NotFound("There is no such policy version.")
        return Response(AcksAnswer(acks).data)


def _answer(policy: PolicyView) -> Response:
    response = Response(PolicyAnswer(policy).data)
    response["ETag"] = f'"{policy.version}"'
    return response


def _expected(request: Request) -> int:
    header = request.headers.get("If-Match")
    if header is None:
        raise PreconditionRequired('Send If-Match: "<version>" with the version that you have read.')
    match = _ETAG.fullmatch(header.strip())
    if match is None:
        raise ValidationError({"If-Match": 'Write the version that you have read, such as "12".'})
    return int(match[1])
