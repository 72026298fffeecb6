"""`tenants/{slug}/policy/`, its history, `policy-versions/{version}/acks/` and `guarantees/`."""

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import rows, selectors
from tenants.api.pagination import Order
from tenants.api.preconditions import expected_version, if_match, with_etag
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.base import pop_flag
from tenants.api.serializers.policy import (
    AcksAnswer,
    GuaranteesAnswer,
    PolicyAnswer,
    PolicyChange,
    PolicyRevert,
    PolicyVersionAnswer,
    PolicyVersionPage,
    TrialsAnswer,
)
from tenants.api.view import ManagementView
from tenants.contracts import PolicyAcks, PolicyView
from tenants.models import Policy, PolicyVersion
from tenants.rules.policy import OWNER_FIELDS
from tenants.services.policy import revert_policy, set_policy
from tenants.trials import trials

HISTORY_ORDER = Order(columns=("version",), kinds=(int,))


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
        parameters=[if_match(required=True)],
        request=PolicyChange,
        responses={200: PolicyAnswer, 412: ERRORS["4XX"], 428: ERRORS["4XX"], **ERRORS},
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change the policy if it still is at the version in `If-Match`. Operators; an owner only `encrypt_disk`."""
        tenant = self.tenant(slug)
        changes = self.read(PolicyChange)
        if not (changes and changes.keys() <= set(OWNER_FIELDS)):
            self.operators_only()
        self.tenant(slug, "owners.write")
        overcommit = pop_flag(changes, "overcommit")
        policy = set_policy(
            tenant_id=tenant.id,
            expected_version=expected_version(request),
            changes=changes,
            actor=self.caller.actor,
            overcommit=overcommit,
        )
        return _answer(policy)


class PolicyHistory(ManagementView):
    """The versions of a tenant's policy."""

    @extend_schema(operation_id="policy_history", parameters=PAGE, responses={200: PolicyVersionPage, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """List the versions, newest first, each with the whole policy as it was."""
        query = PolicyVersion.objects.for_tenant(self.tenant(slug).id).filter(policy__isnull=False)
        return self.page(query, HISTORY_ORDER, lambda row: PolicyVersionAnswer(rows.policy_version_view(row)).data)


class PolicyReversion(ManagementView):
    """Going back."""

    @extend_schema(
        operation_id="policy_revert",
        parameters=[if_match(required=True)],
        request=PolicyRevert,
        responses={200: PolicyAnswer, 412: ERRORS["4XX"], 428: ERRORS["4XX"], **ERRORS},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Make a new version with the fields of an earlier one, if the policy still is at that in `If-Match`.

        It passes the same checks as any change: its share group must be there, its guarantee must fit. Operators only.
        """
        tenant = self.tenant(slug)
        self.operators_only()
        body = self.read(PolicyRevert)
        policy = revert_policy(
            tenant_id=tenant.id,
            version=body["version"],
            expected_version=expected_version(request),
            actor=self.caller.actor,
            overcommit=body["overcommit"],
        )
        return _answer(policy)


class PolicyTrials(ManagementView):
    """The limits on trial."""

    @extend_schema(operation_id="policy_trials", responses={200: TrialsAnswer, **ERRORS})
    def get(self, request: Request, slug: str) -> Response:
        """Read which limits are on trial and how many requests each would have refused or delayed."""
        tenant = self.tenant(slug)
        policy = selectors.policy(tenant.id)
        if policy is None:
            raise NotFound("This tenant has no policy.")
        return Response(TrialsAnswer({"trials": trials(tenant.id, policy)}).data)


class Guarantees(ManagementView):
    """What is guaranteed, and what is left of it."""

    @extend_schema(operation_id="guarantees_read", responses={200: GuaranteesAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """Read the sum of all guarantees against the pool, and by how much they scale down. Operators only."""
        self.operators_only()
        return Response(GuaranteesAnswer(selectors.overcommitment()).data)


class PolicyVersionAcks(ManagementView):
    """How far a version has come."""

    @extend_schema(operation_id="policy_acks", responses={200: AcksAnswer, **ERRORS})
    def get(self, request: Request, version: int) -> Response:
        """Read which live workers have applied a version, how fast, and on which nobody is above its limits."""
        acks = selectors.policy_acks(version)
        if acks is None or not self._may_see(acks):
            raise NotFound("There is no such policy version.")
        return Response(AcksAnswer(acks).data)

    def _may_see(self, acks: PolicyAcks) -> bool:
        """Tell whether the version is of a tenant of the caller's, or of a share group that one is a member of."""
        if acks.tenant_id:
            return bool(self.caller.role_in(acks.tenant_id))
        members = Policy.objects.across_tenants().filter(share_group=acks.share_group)
        return self.caller.is_operator or members.filter(tenant_id__in=self.visible_tenant_ids()).exists()


def _answer(policy: PolicyView) -> Response:
    return with_etag(Response(PolicyAnswer(policy).data), policy.version)
