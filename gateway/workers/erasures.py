"""Erase sessions, and all that is kept of a tenant, on every worker; a worker that is away is told when it is back.

Blocking: for threads, and for the task that delivers what is late (`gateway.tasks`).
"""

import time
from collections.abc import Collection
from datetime import timedelta

import grpc
import msgspec
from django.utils import timezone

from engine.protocol import pb
from gateway.workers import calls
from gateway.workers.sessions import MissingWorker, away_since, reachable
from tenants import selectors
from tenants.contracts import Actor, PendingErasure, PolicyView, WorkerView
from tenants.services import absent, kv
from tenants.services import sessions as service

ERASE_SECONDS = 10.0  # a worker answers when the bytes are gone from every tier; one that takes longer is asked again
BATCH = 200  # erasures that a delivery reads at once
PAGE = 50  # sessions that are erased at once; a worker answers 64 calls of a tenant
WAITED_SECONDS = 3600.0  # who has been away for longer may never come back: it is told if it does, not waited for
SETTLED_SECONDS = 60.0  # by then the request that asked for an erasure has ended
_NOBODYS = "all-sessions"  # the name of no session, or of one more
_DELIVERY_SECONDS = 30.0  # after it the next delivery goes on

# A worker of an older version keeps no sessions: it has erased what it does not have.
_GONE = (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED)


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a session: whether any worker had it, and which have yet to erase it."""

    was_there: bool
    waiting: tuple[MissingWorker, ...]


def erase_session(*, tenant_id: str, session: str, actor: Actor, models: Collection[str] = ()) -> Erased:
    """Erase a session on every worker, or on those of `models`: who does not confirm it is asked until it does.

    Raises:
        Conflict: too many of the tenant's erasures wait already.
    """
    workers, forgotten = _concerned(tenant_id, session, models, actor)
    names = [worker.worker_id for worker in workers]
    service.begin_erasure(tenant_id=tenant_id, session=session, workers=names, actor=actor)
    live, away = reachable(workers)
    told = calls.ask([(worker, _erase(tenant_id, session)) for worker in live], "ChangeSession", seconds=ERASE_SECONDS)
    silent = [one for one in told if one.status not in _GONE]
    waiting = away + tuple(MissingWorker(worker_id=one.worker.worker_id, reason=one.problem) for one in silent)
    waiting += forgotten
    names_waiting = [one.worker_id for one in waiting]
    was_there = any(one.status is grpc.StatusCode.OK for one in told)
    service.settle_erasure(
        tenant_id=tenant_id,
        session=session,
        confirmed=[name for name in names if name not in names_waiting],
        waiting=names_waiting,
        was_there=was_there,
        actor=actor,
    )
    return Erased(was_there=was_there, waiting=waiting)


def erase_kv(*, tenant_id: str, actor: Actor) -> tuple[PolicyView, Erased]:
    """Let nobody find what is kept of a tenant any more, and erase its sessions everywhere; return the new version.

    Raises:
        NotFound: there is no such tenant.
        Conflict: too many of the tenant's erasures wait already.
    """
    workers, forgotten = _concerned(tenant_id, "", (), actor)
    names = [worker.worker_id for worker in workers]
    policy = kv.erase_kv(tenant_id=tenant_id, workers=names, actor=actor)
    live, away = reachable(workers)
    done: list[str] = []
    silent: list[MissingWorker] = []
    for worker in live:
        problem = _erase_all(tenant_id, worker)
        if problem:
            silent.append(MissingWorker(worker_id=worker.worker_id, reason=problem))
        else:
            done.append(worker.worker_id)
    kv.settle_kv(tenant_id=tenant_id, confirmed=done)
    return policy, Erased(was_there=True, waiting=away + tuple(silent) + forgotten)


def _concerned(
    tenant_id: str, session: str, models: Collection[str], actor: Actor
) -> tuple[list[WorkerView], tuple[MissingWorker, ...]]:
    """Return the workers that are to erase, and those to be waited for that are forgotten: for them it is written down.

    Whoever is forgotten or comes back meanwhile is in one list at least: the known are read before and after.
    """
    known = {worker.worker_id: worker for worker in selectors.known_workers()}
    gone = absent.remember(tenant_id=tenant_id, session=session, models=models, actor=actor)
    known |= {worker.worker_id: worker for worker in selectors.known_workers()}
    workers = [worker for worker in known.values() if not models or worker.model in models]
    since = time.time() - WAITED_SECONDS
    waited_for = [one for one in gone if one.worker_id not in known and one.last_seen_at > since]
    return workers, tuple(away_since(one.worker_id, one.last_seen_at) for one in waited_for)


def deliver(*, older_than_seconds: float = SETTLED_SECONDS) -> int:
    """Ask the live workers for the erasures that wait for them; return how many they have confirmed.

    Younger ones are left to the request that began them, which tells its caller what it finds.
    """
    began_before = timezone.now() - timedelta(seconds=older_than_seconds)
    live = {worker.worker_id: worker for worker in selectors.live_workers()}
    deadline = time.monotonic() + _DELIVERY_SECONDS
    num_done = 0
    while waiting := selectors.pending_erasures(list(live), began_before=began_before, most=BATCH):
        for erasure in waiting:
            if time.monotonic() > deadline:
                return num_done
            worker = live.get(erasure.worker_id)
            if worker is None:
                continue
            if _deliver(erasure, worker):
                num_done += 1
            else:
                del live[erasure.worker_id]  # the rest of its erasures wait for the next time
    return num_done


def _deliver(erasure: PendingErasure, worker: WorkerView) -> bool:
    if not erasure.session:
        if _erase_all(erasure.tenant_id, worker):
            return False
        service.delivered(erasure=erasure, was_there=False)
        return True
    request = _erase(erasure.tenant_id, erasure.session)
    (told,) = calls.ask([(worker, request)], "ChangeSession", seconds=ERASE_SECONDS)
    if told.status not in _GONE:
        return False
    service.delivered(erasure=erasure, was_there=told.status is grpc.StatusCode.OK)
    return True


def _erase_all(tenant_id: str, worker: WorkerView, seconds: float = ERASE_SECONDS) -> str:
    """Erase every session of a tenant that a worker has; return why it has not within `seconds`, or an empty text."""
    deadline = time.monotonic() + seconds
    # A list names what a worker knows; an erasure it answers only once it knows all that its disk may have.
    (first,) = calls.ask([(worker, _erase(tenant_id, _NOBODYS))], "ChangeSession", seconds=seconds)
    if first.status not in _GONE:
        return first.problem
    query = pb.SessionQuery(tenant=tenant_id, limit=PAGE)
    while time.monotonic() < deadline:
        (page,) = calls.ask([(worker, query)], "ListSessions", seconds=ERASE_SECONDS)
        if page.status not in _GONE:
            return page.problem
        if page.answer is None or not page.answer.sessions:
            return ""
        requests = [(worker, _erase(tenant_id, session.session)) for session in page.answer.sessions]
        told = calls.ask(requests, "ChangeSession", seconds=ERASE_SECONDS)
        if refused := next((one for one in told if one.status not in _GONE), None):
            return refused.problem
    return "it has more sessions than could be erased at once"


def _erase(tenant_id: str, session: str) -> pb.SessionChange:
    return pb.SessionChange(tenant=tenant_id, session=session, action=pb.SESSION_ACTION_ERASE)
