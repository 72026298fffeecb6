"""`POST /api/v1/tenants/{slug}/policy/preview/`: here and not in `tenants.api`, because it asks the workers."""

from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from gateway.workers.preview import PreviewUnavailable, preview
from tenants.api.schema import ERRORS
from tenants.api.serializers.base import Answer, pop_flag
from tenants.api.serializers.policy import PolicyAnswer, PolicyChange
from tenants.api.view import ManagementView


class NoWorkerAnswers(exceptions.APIException):
    """There is nobody to replay anything, for now."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "no_worker"


class PreviewFiguresAnswer(Answer):
    """What a tenant got; percentiles and the time above the guarantee are the worst worker's, the rest are sums."""

    num_requests = serializers.IntegerField()
    num_refused = serializers.IntegerField(help_text="could never fit, or found the queue full")
    num_preemptions = serializers.IntegerField()
    evicted_blocks = serializers.IntegerField(help_text="cached ones, given up for others or for its own limits")
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    kv_peak_bytes = serializers.IntegerField()
    above_soft_seconds = serializers.FloatField()
    ttft_p50_seconds = serializers.FloatField()
    ttft_p99_seconds = serializers.FloatField()
    queue_p99_seconds = serializers.FloatField()


class TenantPreviewAnswer(Answer):
    """One tenant, under the limits in force and under the proposed ones."""

    tenant_id = serializers.CharField()
    slug = serializers.CharField(help_text="empty: the tenant is gone")
    is_idle = serializers.BooleanField(help_text="it has asked for nothing in that time: nothing can be said of it")
    before = PreviewFiguresAnswer()
    after = PreviewFiguresAnswer()


class WorkerPreviewAnswer(Answer):
    """What one worker has replayed."""

    worker_id = serializers.CharField()
    seconds = serializers.FloatField()
    num_events = serializers.IntegerField(help_text="blocks that its requests came to")
    elapsed_seconds = serializers.FloatField()
    problem = serializers.CharField(help_text="why it has replayed nothing, or has not answered; else empty")


class PreviewAnswer(Answer):
    """What the change would have done to the requests of the last minutes."""

    policy = PolicyAnswer(source="after", help_text="as it would be")
    seconds = serializers.FloatField(help_text="that were replayed")
    num_events = serializers.IntegerField()
    elapsed_seconds = serializers.FloatField(help_text="that the answer took")
    hit_rate_before = serializers.FloatField(help_text="cached prompt tokens by all prompt tokens")
    hit_rate_after = serializers.FloatField()
    pressure_before = serializers.FloatField(help_text="mean score, 0 to 1")
    pressure_after = serializers.FloatField()
    tenants = TenantPreviewAnswer(many=True)
    workers = WorkerPreviewAnswer(many=True)
    problem = serializers.CharField(help_text="why nothing could be replayed; else empty")


class PolicyPreview(ManagementView):
    """What a change of a tenant's policy would do."""

    @extend_schema(
        operation_id="policy_preview",
        request=PolicyChange,
        responses={200: PreviewAnswer, 503: ERRORS["4XX"], **ERRORS},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Replay the last 15 minutes of all live workers under changed limits. Changes nothing. Operators only."""
        tenant = self.tenant(slug)
        self.operators_only()
        changes = self.read(PolicyChange)
        overcommit = pop_flag(changes, "overcommit")
        try:
            found = preview(tenant_id=tenant.id, changes=changes, overcommit=overcommit)
        except PreviewUnavailable as error:
            raise NoWorkerAnswers(str(error)) from error
        return Response(PreviewAnswer(found).data)
