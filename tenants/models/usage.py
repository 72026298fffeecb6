"""The ledger: one record a request, inserted once however often the worker delivers it."""

from django.db import models
from django.utils import timezone

from tenants.models.scope import TenantManager


class UsageRecord(models.Model):
    """What one request used. Tenant, project and key are plain ids: the ledger outlives what it refers to."""

    request_id = models.CharField(primary_key=True, max_length=128)
    tenant_id = models.UUIDField()
    project_id = models.UUIDField(null=True)
    key_id = models.CharField(max_length=32)
    session = models.CharField(max_length=256)
    model = models.CharField(max_length=200)
    worker_id = models.CharField(max_length=100)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    kv_device_byte_seconds = models.FloatField()
    queue_seconds = models.FloatField()
    ttft_seconds = models.FloatField()  # 0: no token came
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    finish_reason = models.CharField(max_length=16)
    num_preemptions = models.PositiveIntegerField()
    recorded_at = models.DateTimeField(default=timezone.now)

    objects = TenantManager["UsageRecord"]()

    class Meta:
        """Pages go from the newest back; counts are never negative."""

        constraints = (
            models.CheckConstraint(
                condition=models.Q(prompt_tokens__gte=0, cached_tokens__gte=0, completion_tokens__gte=0),
                name="usage_tokens_not_negative",
            ),
        )
        indexes = (
            models.Index(fields=("tenant_id", "-finished_at", "-request_id"), name="usage_tenant_page"),
            models.Index(fields=("tenant_id", "key_id", "-finished_at"), name="usage_tenant_key"),
            models.Index(fields=("-finished_at", "-request_id"), name="usage_page"),
            models.Index(fields=("recorded_at",), name="usage_recorded"),
        )

    def __str__(self) -> str:
        return self.request_id
