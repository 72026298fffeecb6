"""Keys: what a client authenticates with. Only a keyed digest is stored; the raw key is shown once."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils import timezone

from tenants.models.project import Project
from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class KeyFields(models.Model):
    """What every key has."""

    id = models.CharField(primary_key=True, max_length=16, editable=False)  # the id inside the raw key
    name = models.CharField(max_length=80)
    digest = models.CharField(max_length=64, unique=True, editable=False)  # HMAC-SHA256 under KEY_PEPPER, hex
    scopes = ArrayField(models.CharField(max_length=32))
    ip_ranges = ArrayField(models.CharField(max_length=64), default=list)  # CIDR; empty: any address
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)  # coarse: minutes late
    created_by = models.CharField(max_length=254)  # the actor's label
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        """No table of its own."""

        abstract = True

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    def usable(self) -> bool:
        """Tell whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())


class ApiKey(KeyFields):
    """A `tg_live_` key: generates for one project of one tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    allowed_models = ArrayField(models.CharField(max_length=200), default=list)  # public names; empty: all
    rpm = models.PositiveIntegerField(default=0)  # the key's own limits; 0: none
    tpm = models.PositiveIntegerField(default=0)
    replaced_by = models.OneToOneField("self", null=True, on_delete=models.SET_NULL, related_name="+")

    objects = TenantManager["ApiKey"]()

    class Meta:
        """Listed newest first, a page at a time."""

        indexes = (models.Index(fields=("tenant", "-created_at", "-id"), name="api_key_page"),)


class ManagementKey(KeyFields):
    """A `tg_op_` (fleet) or `tg_adm_` (one tenant) key: manages, never generates.

    `user` is the person who made it: the key never outranks what that person may still do. Without one (made by the
    system) it stands by itself.
    """

    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="+")
    role = models.CharField(max_length=16)  # operator, owner, admin
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+")
    replaced_by = models.OneToOneField("self", null=True, on_delete=models.SET_NULL, related_name="+")

    objects = TenantManager["ManagementKey"]()

    class Meta:
        """An operator's key has no tenant, every other has one."""

        constraints = (
            models.CheckConstraint(
                condition=models.Q(role="operator", tenant__isnull=True)
                | models.Q(role__in=("owner", "admin"), tenant__isnull=False),
                name="management_key_role_fits",
            ),
        )
        indexes = (models.Index(fields=("tenant", "-created_at", "-id"), name="management_key_page"),)
