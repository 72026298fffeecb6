"""Write stored responses: each is there whole, or while it runs in the background as far as it has come.

    keep ─▶ go_on ... go_on ─▶ an end          by the process that generates it, each time with a lease on it
              │
    cancel, delete, a lease that runs out      from anywhere: from then on `go_on` says that the row is no longer its

What requests leave behind is written down as the ledger is, without an audit row each.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now
from django.utils import timezone

from tenants.contracts import RESPONSES_CHANNEL, ResponseOwner, ResponseRecord
from tenants.errors import Conflict, NotFound
from tenants.models import StoredResponse
from tenants.models.response import RUNNING, ResponseStatus
from tenants.responses import KEPT_DAYS, of_owner, record
from tenants.sealing import seal
from tenants.services.journal import notify

LEASE_SECONDS = 90  # a database that is away for a minute costs no response
MOST_STORED = 100_000  # of one tenant; then, and above the bytes, the oldest go
MOST_BYTES = 2 << 30
_BATCH = 1000
_BATCHES = 100  # of one sweep


@transaction.atomic
def keep(*, owner: ResponseOwner, response: ResponseRecord) -> None:
    """Store a new response; one that runs gets a lease."""
    StoredResponse.objects.for_tenant(owner.tenant_id).create(
        id=response.id,
        project_id=owner.project_id,
        background=response.background,
        created_at=datetime.fromtimestamp(response.created_at, UTC),
        **_written(owner, response),
    )


@transaction.atomic
def go_on(*, owner: ResponseOwner, response: ResponseRecord) -> bool:
    """Write how far a response has come, or its end. False: it was cancelled or deleted, or its lease is over."""
    rows = of_owner(owner).filter(pk=response.id, status__in=RUNNING, lease_until__gte=Now())
    return rows.update(**_written(owner, response)) == 1


@transaction.atomic
def cancel(*, owner: ResponseOwner, response_id: str) -> ResponseRecord:
    """Cancel a response that runs in the background, and return it as it is then. One that has ended stays as it is.

    Raises:
        NotFound: there is no such response of the owner's.
        Conflict: it does not run in the background.
    """
    row = of_owner(owner).filter(pk=response_id).select_for_update(of=("self",)).first()
    found = None if row is None else record(row)
    if found is None:
        raise NotFound("there is no such response")
    if not found.background:
        raise Conflict("only a response that was created with `background` can be cancelled")
    if found.status not in RUNNING:
        return found
    of_owner(owner).filter(pk=response_id).update(status=ResponseStatus.CANCELLED, lease_until=None)
    notify(RESPONSES_CHANNEL, response_id)
    return ResponseRecord(
        id=found.id,
        status="cancelled",
        background=True,
        created_at=found.created_at,
        document=found.document,
    )


@transaction.atomic
def delete(*, owner: ResponseOwner, response_id: str) -> None:
    """Delete a response; one that runs is stopped.

    Raises:
        NotFound: there is no such response of the owner's.
    """
    row = of_owner(owner).filter(pk=response_id).only("id", "status").first()
    if row is None or not of_owner(owner).filter(pk=response_id).delete()[0]:
        raise NotFound("there is no such response")
    if row.status in RUNNING:
        notify(RESPONSES_CHANNEL, response_id)


def sweep() -> int:
    """Delete what is older than `KEPT_DAYS`, and of each tenant the oldest above what one may keep; return how many.

    What was left without an end is given one.
    """
    lost = StoredResponse.objects.across_tenants().filter(lease_until__lt=Now())
    lost.update(status=ResponseStatus.FAILED, lease_until=None)
    old = timezone.now() - timedelta(days=KEPT_DAYS)
    table = StoredResponse._meta.db_table
    by_age = f"SELECT id FROM {table} WHERE created_at <= %s LIMIT %s"  # noqa: S608  # the name of our own table
    by_room = (
        f"SELECT id FROM (SELECT id, row_number() OVER kept AS place, sum(num_bytes) OVER kept AS bytes FROM {table}"  # noqa: S608
        " WINDOW kept AS (PARTITION BY tenant_id ORDER BY created_at DESC, id DESC)) AS ranked"
        " WHERE place > %s OR bytes > %s LIMIT %s"
    )
    return _delete_all(by_age, [old, _BATCH]) + _delete_all(by_room, [MOST_STORED, MOST_BYTES, _BATCH])


def _delete_all(chosen: str, values: list[datetime | int]) -> int:
    """Delete the rows that a query names, a batch a transaction, so that no lock is held for long."""
    num_gone = 0
    for _ in range(_BATCHES):
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {StoredResponse._meta.db_table} WHERE id IN ({chosen})", values)  # noqa: S608
            num_gone += cursor.rowcount
            if cursor.rowcount < _BATCH:
                break
    return num_gone


def _written(owner: ResponseOwner, response: ResponseRecord) -> dict[str, Any]:
    """Return the columns that each write sets."""
    sealed = seal(response.document, tenant_id=owner.tenant_id, row_id=response.id, pepper=settings.KEY_PEPPER)
    return {
        "status": response.status,
        "sealed": sealed,
        "num_bytes": len(sealed),
        "lease_until": _lease() if response.status in RUNNING else None,
    }


def _lease() -> CombinedExpression:
    return Now() + timedelta(seconds=LEASE_SECONDS)
