"""Boosts: a change of some limits of a tenant for a time."""

import uuid

from django.db import models
from django.utils import timezone

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class Boost(models.Model):
    """A change that ends by itself. Its start and its end are versions of the policy like any other."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    changes = models.JSONField()  # field of a policy: value while it lasts
    before = models.JSONField()  # the same fields: value before
    reason = models.CharField(max_length=500)
    started_at = models.DateTimeField(default=timezone.now)
    ends_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)  # null: in force
    started_version = models.BigIntegerField()
    ended_version = models.BigIntegerField(null=True)  # null: in force, or nothing was left to put back
    created_by = models.CharField(max_length=254)

    objects = TenantManager["Boost"]()

    class Meta:
        """One is in force a tenant; what is due is found without a scan."""

        constraints = (
            models.UniqueConstraint(
                fields=("tenant",), condition=models.Q(ended_at__isnull=True), name="boost_one_in_force"
            ),
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("started_at")), name="boost_ends_after_its_start"
            ),
        )
        indexes = (
            models.Index(fields=("ends_at",), condition=models.Q(ended_at__isnull=True), name="boost_due"),
            models.Index(fields=("tenant", "-started_at", "-id"), name="boost_page"),
        )

    def __str__(self) -> str:
        return f"boost {self.id}"
