"""How much of a tenant's limits each worker may have been granted: the controller's note to its successor."""

from django.db import models

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class GrantShare(models.Model):
    """Written before grants move. A new leader reads what a worker that it cannot reach may hold at most.

    `term` is that of the controller who wrote: an older one may not write over it.
    """

    tenant = models.OneToOneField(Tenant, primary_key=True, on_delete=models.CASCADE, related_name="+")
    term = models.BigIntegerField()
    shares = models.JSONField()  # {worker id: [part of bytes, part of places]}, each 0 to 1

    objects = TenantManager["GrantShare"]()

    def __str__(self) -> str:
        return f"shares of {self.tenant_id}"
