"""Policies and workers as Postgres has them. Blocking reads: run them in a thread."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tenants import rows, selectors
from tenants.contracts import PolicyView, WorkerView
from tenants.models import Policy, Worker


@dataclass(frozen=True, slots=True)
class Policies:
    """What changed. `is_complete`: these are all there are, and a tenant that is not among them is gone."""

    version: int
    changed: Mapping[str, PolicyView]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A worker that announced itself and has not been forgotten, live or not."""

    view: WorkerView
    applied_version: int
    silent_seconds: float  # since its last heartbeat


def read_policies(since: int, known: frozenset[str]) -> Policies:
    """Return the policies newer than version `since`, or all of them when a tenant has gone.

    Args:
        since: the version up to which the caller knows everything.
        known: the tenants that the caller knows.
    """
    # The counter is read first: commit order is version order, so the later read sees every change up to it.
    version = selectors.policy_version()
    changed = dict(selectors.policies(since))
    is_complete = since == 0
    # Nothing deletes tenants today; a row removed by hand must not keep its limits for ever.
    if not is_complete and Policy.objects.across_tenants().count() < len(known | changed.keys()):
        changed, is_complete = dict(selectors.policies()), True
    return Policies(max([version, *(policy.version for policy in changed.values())]), changed, is_complete)


def read_workers() -> dict[str, KnownWorker]:
    """Return every worker that has a row, by id."""
    now = time.time()
    return {
        row.pk: KnownWorker(rows.worker_view(row), row.applied_version, max(0.0, now - row.last_seen_at.timestamp()))
        for row in Worker.objects.order_by("pk")
    }
