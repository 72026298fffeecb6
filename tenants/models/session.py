"""Sessions whose KV is to be erased on workers that have not confirmed it. What sessions there are, workers know."""

from django.db import models
from django.utils import timezone

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class SessionErasure(models.Model):
    """One session, or all where it is empty, and one worker; the row goes when the worker has confirmed.

    The worker is named and not referred to: it may be forgotten while it is away, and come back with its disk.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    session = models.CharField(max_length=256, blank=True)
    worker_id = models.CharField(max_length=100)
    requested_at = models.DateTimeField(default=timezone.now)
    requested_by = models.CharField(max_length=254)  # the actor's label

    objects = TenantManager["SessionErasure"]()

    class Meta:
        """Asking twice is asking once; deliveries look for workers."""

        indexes = (models.Index(fields=("worker_id", "id"), name="session_erasure_due"),)
        constraints = (models.UniqueConstraint(fields=("tenant", "session", "worker_id"), name="session_erasure_once"),)

    def __str__(self) -> str:
        return f"erasure {self.pk}"


class LateErasure(models.Model):
    """One session, or all where it is empty, that was erased while workers of a model were forgotten.

    One that comes back with its disk is to erase what was asked for since it was last heard of (`AbsentWorker`).
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    session = models.CharField(max_length=256, blank=True)
    model = models.CharField(max_length=200)
    asked_at = models.DateTimeField(default=timezone.now)  # for the last time
    asked_by = models.CharField(max_length=254)  # the actor's label

    objects = TenantManager["LateErasure"]()

    class Meta:
        """Asking twice is asking once; a worker that is back looks for its model."""

        indexes = (models.Index(fields=("model", "asked_at"), name="late_erasure_due"),)
        constraints = (models.UniqueConstraint(fields=("tenant", "model", "session"), name="late_erasure_once"),)

    def __str__(self) -> str:
        return f"late erasure {self.pk}"
