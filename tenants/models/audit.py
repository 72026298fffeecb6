"""The audit trail: who did what to what, with before and after. Rows are only ever added (a trigger holds that)."""

from django.db import models
from django.utils import timezone

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class AuditEvent(models.Model):
    """One change. `tenant` is null for what concerns the fleet."""

    at = models.DateTimeField(default=timezone.now)
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=64)
    actor_label = models.CharField(max_length=254)
    action = models.CharField(max_length=64)  # noun.verb, such as policy.changed
    target_kind = models.CharField(max_length=32)
    target_id = models.CharField(max_length=128)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    objects = TenantManager["AuditEvent"]()

    class Meta:
        """Read newest first, a page at a time."""

        indexes = (
            models.Index(fields=("tenant", "-at", "-id"), name="audit_tenant_page"),
            models.Index(fields=("-at", "-id"), name="audit_page"),
        )

    def __str__(self) -> str:
        return f"{self.action} {self.target_id}"
