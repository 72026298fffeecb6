"""The counter of policy versions, which share groups take theirs from as well."""

import uuid
from datetime import datetime

from django.db import connection

from tenants.contracts import POLICY_CHANNEL
from tenants.errors import NotFound
from tenants.models import PolicyCounter, PolicyVersion, ShareGroup
from tenants.models.tenant import is_slug
from tenants.services.journal import notify


def next_version() -> int:
    """Take the next policy version and hold the counter's row lock to the end of the transaction.

    Writers therefore pass one at a time, and the order of versions is the order of commits: a reader that has seen
    version n has seen every change up to n. A rollback gives the version back.
    """
    assert connection.in_atomic_block, "the counter's lock must last until the change commits"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants_policycounter (id, value) VALUES (1, 1)"
            " ON CONFLICT (id) DO UPDATE SET value = tenants_policycounter.value + 1 RETURNING value"
        )
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])


def hold_counter() -> None:
    """Hold the counter's row lock without taking a version yet, for a change that takes several."""
    assert connection.in_atomic_block, "the counter's lock must last until the change commits"
    PolicyCounter.objects.select_for_update().first()


def record_version(made: PolicyVersion, tenant_id: uuid.UUID) -> None:
    """Keep a tenant's version in its history."""
    made.tenant_id = tenant_id
    made.save(force_insert=True)


def locked_group(name: str) -> ShareGroup:
    """Return a live share group's row, locked to the end of the transaction; call with the counter held.

    Raises:
        NotFound: there is no such group.
    """
    row = ShareGroup.objects.live().select_for_update().filter(name=name).first() if is_slug(name) else None
    if row is None:
        raise NotFound("there is no such share group")
    return row


def save_group(row: ShareGroup, version: int, at: datetime) -> None:
    """Store a share group at its new version, remember when that came to be, and announce it."""
    row.version = version
    row.save()
    PolicyVersion.objects.across_tenants().create(version=version, share_group=row.name, created_at=at)
    notify(POLICY_CHANNEL, str(version))
