"""The outbox: what happened, written in the transaction in which it happened, for readers outside the database."""

from django.db import models
from django.utils import timezone

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class OutboxEvent(models.Model):
    """One event. Readers keep their own place; old rows are swept by `tenants.tasks.sweep_outbox`."""

    topic = models.CharField(max_length=64)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="+")
    payload = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    objects = TenantManager["OutboxEvent"]()

    def __str__(self) -> str:
        return f"{self.topic} {self.pk}"
