"""Engine workers as they announced themselves, and their acks of policy versions."""

from typing import ClassVar

from django.db import models
from django.utils import timezone


class Worker(models.Model):
    """One engine worker. It is live while its heartbeat is recent, see `selectors.live_workers`."""

    id = models.CharField(primary_key=True, max_length=100)
    address = models.CharField(max_length=300)  # what gRPC dials
    model = models.CharField(max_length=200)
    digest = models.CharField(max_length=64)
    kv_bytes = models.BigIntegerField()
    block_bytes = models.BigIntegerField()
    max_context = models.PositiveIntegerField()
    announced_at = models.DateTimeField(default=timezone.now)
    last_seen_at = models.DateTimeField(default=timezone.now, db_index=True)
    draining = models.BooleanField(default=False)
    applied_version = models.BigIntegerField(default=0)
    applied_at = models.DateTimeField(null=True)

    objects: ClassVar[models.Manager["Worker"]] = models.Manager()

    class Meta:
        """A worker without memory could serve nothing."""

        constraints = (
            models.CheckConstraint(condition=models.Q(kv_bytes__gte=1, block_bytes__gte=1), name="worker_has_memory"),
        )

    def __str__(self) -> str:
        return self.id


class AbsentWorker(models.Model):
    """A worker that is forgotten and may come back with what it has on disk; nothing is routed or granted to it."""

    id = models.CharField(primary_key=True, max_length=100)
    model = models.CharField(max_length=200)
    last_seen_at = models.DateTimeField(db_index=True)

    objects: ClassVar[models.Manager["AbsentWorker"]] = models.Manager()

    def __str__(self) -> str:
        return self.id


class PolicyAck(models.Model):
    """A worker has applied a version, and with it every earlier one; later it may say that this has settled."""

    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="+")
    version = models.BigIntegerField()
    applied_at = models.DateTimeField()
    over_bytes = models.BigIntegerField(default=0)  # device KV above the limits when it was applied
    settle_seconds = models.FloatField(default=0.0)  # how long the worker thought that it would take
    settled_at = models.DateTimeField(null=True)  # null: not yet, or the worker does not say

    objects: ClassVar[models.Manager["PolicyAck"]] = models.Manager()

    class Meta:
        """The first ack counts."""

        constraints = (models.UniqueConstraint(fields=("worker", "version"), name="policy_ack_unique"),)

    def __str__(self) -> str:
        return f"{self.worker_id} applied {self.version}"
