"""Policies, share groups and workers as Postgres has them. Blocking reads: run them in a thread."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, transaction

from tenants import rows, selectors
from tenants.contracts import PushedPolicy, ShareGroupPolicy, WorkerView
from tenants.models import Policy, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What changed up to `version`. `is_complete`: this is all there is, and what is not in it is gone."""

    version: int
    tenants: Mapping[str, PushedPolicy]
    share_groups: Mapping[str, ShareGroupPolicy]  # removed ones too, unless complete
    is_complete: bool


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A worker that announced itself and has not been forgotten, live or not."""

    view: WorkerView
    applied_version: int
    silent_seconds: float  # since its last heartbeat


def read_policies(since: int, known: frozenset[str]) -> Policies:
    """Return what is newer than version `since`, or everything when a tenant has gone.

    Args:
        since: the version up to which the caller knows everything.
        known: the tenants that the caller knows.
    """
    with _one_moment():
        version = selectors.policy_version()
        changed = dict(selectors.pushed_policies(since))
        is_complete = since == 0
        # Nothing deletes tenants today; a row removed by hand must not keep its limits for ever.
        if not is_complete and Policy.objects.across_tenants().count() < len(known | changed.keys()):
            changed, is_complete, since = dict(selectors.pushed_policies()), True, 0
        groups = {group.name: group for group in selectors.share_group_policies(since, contents=False)}
    return Policies(version=version, tenants=changed, share_groups=groups, is_complete=is_complete)


@contextmanager
def _one_moment() -> Iterator[None]:
    """Let all reads see the database as it was at one moment.

    A version is safe to go on from only when each table was read as of that version: commit order is version order, but
    a later read sees later commits.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def read_workers() -> dict[str, KnownWorker]:
    """Return every worker that has a row, by id."""
    now = time.time()
    return {
        row.pk: KnownWorker(rows.worker_view(row), row.applied_version, max(0.0, now - row.last_seen_at.timestamp()))
        for row in Worker.objects.order_by("pk")
    }
