"""A project: groups a tenant's keys and usage."""

import uuid

from django.db import models
from django.utils import timezone

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class Project(models.Model):
    """A project of one tenant; every tenant starts with one named `default`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager["Project"]()

    class Meta:
        """Names are unique within a tenant."""

        constraints = (models.UniqueConstraint(fields=("tenant", "name"), name="project_name_unique"),)

    def __str__(self) -> str:
        return self.name
