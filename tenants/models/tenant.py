"""A tenant: the account that keys, policy and usage belong to."""

import re
import secrets
import uuid
from typing import ClassVar, TypeGuard

from django.db import models
from django.db.models.functions import Length
from django.db.models.lookups import Exact
from django.utils import timezone

SLUG_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"


def is_slug(value: object) -> TypeGuard[str]:
    """Tell whether `value` has the form of a slug."""
    return isinstance(value, str) and re.fullmatch(SLUG_PATTERN.strip("^$"), value) is not None


def new_secret() -> bytes:
    """Return 32 random bytes; a KV namespace or a disk's secret is derived from them."""
    return secrets.token_bytes(32)


class Status(models.TextChoices):
    """A suspended tenant's keys are refused; its data and policy stay."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


class Tenant(models.Model):
    """A tenant. The slug is in URLs and never changes (a trigger holds it); the secret never leaves us."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(max_length=40, unique=True)
    name = models.CharField(max_length=120)
    colour = models.PositiveSmallIntegerField()  # index into the pages' colour-blind-safe order
    secret = models.BinaryField(default=new_secret, editable=False)
    time_zone = models.CharField(max_length=64, default="UTC")
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[models.Manager["Tenant"]] = models.Manager()

    class Meta:
        """What the services promise, the database checks."""

        constraints = (
            models.CheckConstraint(condition=models.Q(slug__regex=SLUG_PATTERN), name="tenant_slug_form"),
            models.CheckConstraint(condition=models.Q(status__in=Status.values), name="tenant_status_known"),
            models.CheckConstraint(condition=Exact(Length("secret"), 32), name="tenant_secret_32_bytes"),
        )

    def __str__(self) -> str:
        return self.slug
