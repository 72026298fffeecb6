"""Policy: one row a tenant, versioned by one counter with share groups, so that commit order is version order."""

from typing import ClassVar

from django.db import models
from django.db.models.functions import Length
from django.db.models.lookups import Exact
from django.utils import timezone

from tenants.models.scope import TenantManager
from tenants.models.tenant import Tenant


class Priority(models.TextChoices):
    """Service classes, most urgent first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


class Policy(models.Model):
    """A tenant's fleet-wide limits as `tenants.contracts.PolicyView` explains them."""

    tenant = models.OneToOneField(Tenant, primary_key=True, on_delete=models.PROTECT, related_name="policy")
    version = models.BigIntegerField(unique=True)
    weight = models.FloatField(default=1.0)
    kv_soft_bytes = models.BigIntegerField(default=0)
    kv_hard_bytes = models.BigIntegerField(default=256 << 20)
    max_running = models.PositiveIntegerField(default=32)
    max_queued = models.PositiveIntegerField(default=256)
    rpm = models.PositiveIntegerField(default=0)
    tpm = models.PositiveIntegerField(default=0)
    max_context = models.PositiveIntegerField(default=8192)
    max_output = models.PositiveIntegerField(default=4096)
    priority = models.CharField(max_length=16, choices=Priority, default=Priority.STANDARD)
    share_group = models.CharField(max_length=40, default="", db_index=True)  # a live group's name (a trigger holds it)
    host_bytes = models.BigIntegerField(default=1 << 30)
    disk_bytes = models.BigIntegerField(default=2 << 30)
    encrypt_disk = models.BooleanField(default=False)
    disk_seed = models.BinaryField(default=b"", editable=False)  # see `rows.disk_secret`; gone, what is on disk is too
    shadow = models.JSONField(default=dict)  # the limits on trial, by the names of `contracts.ShadowLimits`
    updated_at = models.DateTimeField(default=timezone.now)

    objects = TenantManager["Policy"]()

    class Meta:
        """What `services.policy` validates, the database checks again."""

        constraints = (
            models.CheckConstraint(condition=models.Q(version__gte=1), name="policy_version_positive"),
            models.CheckConstraint(
                condition=models.Q(kv_soft_bytes__gte=0, kv_soft_bytes__lte=models.F("kv_hard_bytes")),
                name="policy_soft_within_hard",
            ),
            models.CheckConstraint(condition=models.Q(kv_hard_bytes__gte=1), name="policy_hard_positive"),
            models.CheckConstraint(
                condition=models.Q(weight__gt=0.0, weight__lte=1000.0), name="policy_weight_in_range"
            ),
            models.CheckConstraint(
                condition=models.Q(max_running__gte=1, max_context__gte=1, max_output__gte=1),
                name="policy_counts_positive",
            ),
            models.CheckConstraint(condition=models.Q(priority__in=Priority.values), name="policy_priority_known"),
            models.CheckConstraint(
                condition=models.Q(host_bytes__gte=0, disk_bytes__gte=0), name="policy_tiers_not_negative"
            ),
            models.CheckConstraint(
                condition=models.Q(models.Q(encrypt_disk=True), Exact(Length("disk_seed"), 32))
                | models.Q(models.Q(encrypt_disk=False), Exact(Length("disk_seed"), 0)),
                name="policy_disk_seed",
            ),
        )

    def __str__(self) -> str:
        return f"policy {self.version}"


class PolicyVersion(models.Model):
    """When a version came to be, and whose it was, a tenant's or a share group's; acks are measured from here.

    A tenant's holds the whole policy as it was then. Where that is null, as with share groups and with versions from
    before there was a history, nothing can go back to it.
    """

    version = models.BigIntegerField(primary_key=True)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="+")
    share_group = models.CharField(max_length=40, default="")  # its name, also after its end
    created_at = models.DateTimeField()
    policy = models.JSONField(null=True)  # `contracts.PolicyView`
    action = models.CharField(max_length=64, default="")  # of the audit trail
    changed_by = models.CharField(max_length=254, default="")  # the actor's label
    changed = models.JSONField(default=list)  # names of the fields that differ from the version before

    objects = TenantManager["PolicyVersion"]()

    class Meta:
        """A version has exactly one owner; a tenant's history is read newest first, a page at a time."""

        indexes = (models.Index(fields=("tenant", "-version"), name="policy_version_page"),)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(tenant__isnull=False, share_group="")
                | models.Q(models.Q(tenant__isnull=True), ~models.Q(share_group="")),
                name="policy_version_owner",
            ),
        )

    def __str__(self) -> str:
        return str(self.version)


class PolicyCounter(models.Model):
    """The one row that hands out versions. Its lock is held to the end of the transaction that took one."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    value = models.BigIntegerField()

    objects: ClassVar[models.Manager["PolicyCounter"]] = models.Manager()

    class Meta:
        """There is exactly one row."""

        constraints = (models.CheckConstraint(condition=models.Q(id=1), name="policy_counter_single"),)

    def __str__(self) -> str:
        return str(self.value)
