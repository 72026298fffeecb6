"""`share-groups/` and `share-groups/{name}/`. Operators only."""

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import rows, selectors
from tenants.api.pagination import Order
from tenants.api.preconditions import expected_version, if_match, with_etag
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.base import pop_flag, refuse_unknown
from tenants.api.serializers.share_groups import (
    ShareGroupAnswer,
    ShareGroupChange,
    ShareGroupCreate,
    ShareGroupPage,
    ShareGroupRemoval,
)
from tenants.api.view import ManagementView
from tenants.contracts import ShareGroupView
from tenants.models import ShareGroup
from tenants.rules import share_groups as rules
from tenants.services.share_groups import create_share_group, remove_share_group, update_share_group

BY_NAME = Order(columns=("name",), kinds=(str,), newest_first=False)


class ShareGroupList(ManagementView):
    """All share groups."""

    @extend_schema(operation_id="share_groups_list", parameters=PAGE, responses={200: ShareGroupPage, **ERRORS})
    def get(self, request: Request) -> Response:
        """List share groups by name."""
        self.operators_only()
        query = ShareGroup.objects.live().counted()
        return self.page(query, BY_NAME, lambda row: ShareGroupAnswer(rows.share_group_view(row)).data)

    @extend_schema(
        operation_id="share_groups_create", request=ShareGroupCreate, responses={201: ShareGroupAnswer, **ERRORS}
    )
    def post(self, request: Request) -> Response:
        """Create a share group. A tenant becomes a member by its policy's `share_group`."""
        self.operators_only()
        body = self.read(ShareGroupCreate)
        overcommit, name = pop_flag(body, "overcommit"), body.pop("name", "")
        refuse_unknown(body, rules.FIELDS)
        fields = rules.changed(rules.GroupFields(), body)
        view = create_share_group(
            name=name,
            description=fields.description,
            kv_soft_bytes=fields.kv_soft_bytes,
            kv_hard_bytes=fields.kv_hard_bytes,
            actor=self.caller.actor,
            overcommit=overcommit,
        )
        return _answer(view, status=201)


class ShareGroupDetail(ManagementView):
    """One share group."""

    @extend_schema(operation_id="share_groups_read", responses={200: ShareGroupAnswer, **ERRORS})
    def get(self, request: Request, name: str) -> Response:
        """Read a share group. Its ETag is the version that a change has to name."""
        self.operators_only()
        view = selectors.share_group(name)
        if view is None:
            raise NotFound("There is no such share group.")
        return _answer(view)

    @extend_schema(
        operation_id="share_groups_change",
        parameters=[if_match(required=True)],
        request=ShareGroupChange,
        responses={200: ShareGroupAnswer, 412: ERRORS["4XX"], 428: ERRORS["4XX"], **ERRORS},
    )
    def patch(self, request: Request, name: str) -> Response:
        """Change a share group's limits or description if it still is at the version in `If-Match`."""
        self.operators_only()
        changes = self.read(ShareGroupChange)
        overcommit = pop_flag(changes, "overcommit")
        view = update_share_group(
            name=name,
            expected_version=expected_version(request),
            changes=changes,
            actor=self.caller.actor,
            overcommit=overcommit,
        )
        return _answer(view)

    @extend_schema(
        operation_id="share_groups_remove",
        parameters=[ShareGroupRemoval, if_match(required=False)],
        responses={204: None, 412: ERRORS["4XX"], **ERRORS},
    )
    def delete(self, request: Request, name: str) -> Response:
        """Remove a share group with its prefixes. While policies name it that is a 409, unless `detach` is true."""
        self.operators_only()
        remove_share_group(
            name=name,
            actor=self.caller.actor,
            detach=self.query(ShareGroupRemoval)["detach"],
            expected_version=expected_version(request) if "If-Match" in request.headers else None,
        )
        return Response(status=204)


def _answer(view: ShareGroupView, status: int = 200) -> Response:
    return with_etag(Response(ShareGroupAnswer(view).data, status=status), view.version)
