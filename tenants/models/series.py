"""The time series: what tenants used, how short memory was, who cost whom what. Rows of ten seconds, then of five
minutes.

`at` is the beginning of a row's time and `seconds` its length; `covered` says for how much of it there were statistics,
and weighs its means. Idle tenants have no rows; where no worker was heard there is a gap.
"""

import uuid
from typing import ClassVar, NoReturn

from django.db import models

from tenants.errors import NoTenantScope
from tenants.models.scope import TenantManager

FINE_SECONDS, COARSE_SECONDS = 10, 300
GROUP = "group:"  # what an account's name begins with that is a share group's


class TenantSample(models.Model):
    """One tenant on one worker: means and peaks of what it held, and what its counters gained."""

    at = models.DateTimeField()
    seconds = models.PositiveSmallIntegerField()
    covered = models.FloatField()
    worker_id = models.CharField(max_length=100)
    tenant_id = models.UUIDField()
    weight = models.FloatField()
    kv_bytes = models.FloatField()  # this and the next two: mean
    kv_cached_bytes = models.FloatField()
    kv_borrowed_bytes = models.FloatField()
    kv_peak_bytes = models.BigIntegerField()
    running = models.FloatField()  # this and the next: mean
    queued = models.FloatField()
    oldest_wait_seconds = models.FloatField()  # the longest
    above_soft_seconds = models.FloatField()  # this and all below: in the row's time
    service = models.FloatField()
    output_tokens = models.BigIntegerField()
    num_preemptions = models.BigIntegerField()
    recomputed_tokens = models.BigIntegerField()

    objects = TenantManager["TenantSample"]()

    class Meta:
        """One row a time, worker and tenant."""

        constraints = (
            models.UniqueConstraint(fields=("seconds", "at", "worker_id", "tenant_id"), name="tenant_sample_unique"),
            models.CheckConstraint(condition=models.Q(covered__gt=0), name="tenant_sample_covered"),
        )
        indexes = (
            models.Index(fields=("tenant_id", "at"), name="tenant_sample_tenant"),
            models.Index(fields=("at",), name="tenant_sample_at"),
        )

    def __str__(self) -> str:
        return f"{self.tenant_id} on {self.worker_id} at {self.at}"


class PressureSample(models.Model):
    """How short one worker's memory was: the score and its parts, each 0 to 1, as means."""

    at = models.DateTimeField()
    seconds = models.PositiveSmallIntegerField()
    covered = models.FloatField()
    worker_id = models.CharField(max_length=100)
    score = models.FloatField()
    score_peak = models.FloatField()
    use = models.FloatField()
    borrowed = models.FloatField()
    wait = models.FloatField()
    swap = models.FloatField()
    pool_use = models.FloatField()  # blocks that requests hold, as a share of the pool

    objects: ClassVar[models.Manager["PressureSample"]] = models.Manager()

    class Meta:
        """One row a time and worker."""

        constraints = (
            models.UniqueConstraint(fields=("seconds", "at", "worker_id"), name="pressure_sample_unique"),
            models.CheckConstraint(condition=models.Q(covered__gt=0), name="pressure_sample_covered"),
        )
        indexes = (models.Index(fields=("at",), name="pressure_sample_at"),)

    def __str__(self) -> str:
        return f"{self.worker_id} at {self.at}"


class PairManager(models.Manager["InterferenceSample"]):
    """Gives out pairs that one account is part of, or all when that is said aloud: as `TenantManager`."""

    def get_queryset(self) -> NoReturn:
        """Refuse: every query method of a manager starts here."""
        raise NoTenantScope(
            "InterferenceSample.objects was queried without an account: "
            "write .for_tenant(tenant_id), or .across_tenants() where an operator or a system job means all"
        )

    def for_tenant(self, tenant_id: uuid.UUID | str) -> models.QuerySet["InterferenceSample"]:
        """Return the pairs that a tenant is part of.

        Raises:
            NoTenantScope: `tenant_id` is not the id of a tenant.
        """
        try:
            name = str(tenant_id if isinstance(tenant_id, uuid.UUID) else uuid.UUID(tenant_id))
        except (ValueError, TypeError, AttributeError) as error:
            raise NoTenantScope(f"{tenant_id!r} is not a tenant id") from error
        return self.across_tenants().filter(models.Q(by=name) | models.Q(of=name))

    def across_tenants(self) -> models.QuerySet["InterferenceSample"]:
        """Return the pairs of every tenant."""
        return models.QuerySet["InterferenceSample"](model=self.model, using=self._db)


class InterferenceSample(models.Model):
    """What one account's need cost another on one worker: a tenant's id, or "group:" and a share group's name."""

    at = models.DateTimeField()
    seconds = models.PositiveSmallIntegerField()
    worker_id = models.CharField(max_length=100)
    by = models.CharField(max_length=120)
    of = models.CharField(max_length=120)
    cached_blocks = models.BigIntegerField()
    num_preemptions = models.BigIntegerField()
    recomputed_tokens = models.BigIntegerField()
    swapped_bytes = models.BigIntegerField()

    objects = PairManager()

    class Meta:
        """One row a time, worker and pair."""

        constraints = (
            models.UniqueConstraint(fields=("seconds", "at", "worker_id", "by", "of"), name="interference_unique"),
        )
        indexes = (models.Index(fields=("at",), name="interference_at"),)

    def __str__(self) -> str:
        return f"{self.by} cost {self.of} at {self.at}"


class SeriesMark(models.Model):
    """Where a worker's counters stood when its newest row was written, so that the next controller goes on from there.

    Written with the rows, in one transaction. `term` is that of the controller who writes: an older one may not.
    """

    worker_id = models.CharField(primary_key=True, max_length=100)
    term = models.BigIntegerField()
    at = models.DateTimeField()
    counters = models.BinaryField()  # a `contracts.SeriesCounters` as MessagePack

    objects: ClassVar[models.Manager["SeriesMark"]] = models.Manager()

    def __str__(self) -> str:
        return f"{self.worker_id} at {self.at}"
