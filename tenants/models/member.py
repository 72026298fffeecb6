"""A membership: a user's role in a tenant."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class Role(models.TextChoices):
    """Roles within a tenant, most powerful first; what each may do is in `tenants.authority`."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    VIEWER = "viewer"


class Membership(models.Model):
    """One user's role in one tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    role = models.CharField(max_length=16, choices=Role)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager["Membership"]()

    class Meta:
        """One role a user and tenant."""

        constraints = (
            models.UniqueConstraint(fields=("tenant", "user"), name="membership_unique"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        )

    def __str__(self) -> str:
        return f"{self.user_id} is {self.role} of {self.tenant_id}"
