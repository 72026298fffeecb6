"""The counter of policy versions."""

import uuid
from datetime import datetime

from django.db import connection

from tenants.models import PolicyVersion


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


def record_version(version: int, tenant_id: uuid.UUID, at: datetime) -> None:
    """Remember when a version came to be."""
    PolicyVersion.objects.for_tenant(tenant_id).create(version=version, created_at=at)
