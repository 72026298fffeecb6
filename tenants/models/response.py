"""Responses of `/v1/responses` that are kept: what went in and what came out, sealed, for thirty days."""

from django.db import models
from django.utils import timezone

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class ResponseStatus(models.TextChoices):
    """OpenAI's names. The first two run: a lease says until when that is believed."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


RUNNING = (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)


class StoredResponse(models.Model):
    """One response. It is its project's: no other project of the tenant finds it.

    `sealed` holds every text (see `tenants.sealing`), so that no query, dump or admin page shows one. What runs in the
    background has a lease that the process which generates it extends; once it is over nobody may write that row on,
    and it counts as failed.
    """

    id = models.CharField(primary_key=True, max_length=64)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    project_id = models.UUIDField()
    status = models.CharField(max_length=16, choices=ResponseStatus)
    background = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now)
    lease_until = models.DateTimeField(null=True)
    sealed = models.BinaryField()
    num_bytes = models.PositiveIntegerField()  # of `sealed`

    objects = TenantManager["StoredResponse"]()

    class Meta:
        """What has ended has no lease; sweeps go by age, and by tenant from the newest back."""

        indexes = (
            models.Index(fields=("created_at",), name="response_age"),
            models.Index(fields=("tenant", "-created_at", "-id"), include=("num_bytes",), name="response_tenant_age"),
            models.Index(fields=("lease_until",), condition=models.Q(lease_until__isnull=False), name="response_lease"),
        )
        constraints = (
            models.CheckConstraint(condition=models.Q(status__in=ResponseStatus.values), name="response_status_known"),
            models.CheckConstraint(
                condition=models.Q(status__in=RUNNING, background=True, lease_until__isnull=False)
                | models.Q(~models.Q(status__in=RUNNING), lease_until__isnull=True),
                name="response_lease_while_it_runs",
            ),
        )

    def __str__(self) -> str:
        return self.id
