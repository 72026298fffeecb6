"""The active controller: reads the truth, plans pushes, keeps one link per worker. Lives as long as the leadership.

    NOTIFY or poll ──▶ read what changed ──▶ ledger ──▶ plan ──▶ links ──▶ workers
    workers ──▶ acks ──▶ ledger (others may grow now) and Postgres ──▶ hints
    share groups ──▶ sharing ──▶ ledger, and once more when their prefixes are tokenised

All state here can be lost: policies, groups and workers are in Postgres, grants and unacked usage are with the workers.
"""

import asyncio
import math
import time
from collections.abc import Collection
from functools import partial

import structlog
from django.db import Error

from engine.protocol import engine_pb2 as pb
from gateway.controller.acks import Ack, AckRecorder, Settled
from gateway.controller.balance import Balance
from gateway.controller.boosts import BoostTimer
from gateway.controller.holders import Holder, Policy, share_group, tenant
from gateway.controller.leadership import Leadership
from gateway.controller.ledger import TERM_BITS, Ledger
from gateway.controller.link import WorkerLink
from gateway.controller.messages import grants_of, policy_push, worker_stats
from gateway.controller.roll import keep
from gateway.controller.series import SeriesRecorder
from gateway.controller.sharing import Sharing
from gateway.controller.threads import DatabaseThreads
from gateway.controller.truth import KnownWorker, read_policies, read_workers
from gateway.hints import HintPublisher
from gateway.workers.client import Dial
from tenants import selectors
from tenants.contracts import POLICY_CHANNEL, WORKER_LIVE_SECONDS, WORKERS_CHANNEL, SharedPrefixView

MEET_SECONDS = 1.0  # how long a new leader waits to hear what known workers hold before it moves any grant
LONG_TOKENS = 50_000  # a push with more of them takes more than a millisecond to put together

log = structlog.get_logger("controller")


class Fleet:
    """One spell of leadership.

    Args:
        leadership: the lock, held.
        threads: where Django's ORM runs.
        hints: where dashboards hear of changes; its `run` is the caller's.
        dial: how workers are reached; the address is each worker's own.
    """

    def __init__(self, leadership: Leadership, threads: DatabaseThreads, hints: HintPublisher, dial: Dial) -> None:
        self._leadership = leadership
        self._threads = threads
        self._hints = hints
        self._dial = dial
        self._wake = asyncio.Event()
        self._ledger = Ledger(term=leadership.term)
        self._sharing = Sharing(self._prefix, self._regrant, hints.prefixes)
        self._balance = Balance(self._ledger, threads, self._wake.set)
        self._boosts = BoostTimer(threads)
        self._acks = AckRecorder(threads, hints.policy)
        self._series = SeriesRecorder(threads, leadership.term)
        self._known: dict[str, KnownWorker] = {}
        self._links: dict[str, tuple[WorkerLink, asyncio.Task[None]]] = {}
        self._connected: set[str] = set()
        self._met: set[str] = set()  # connected at some time of this spell: they may hold grants
        self._stale: set[str] = set()
        self._due = {POLICY_CHANNEL, WORKERS_CHANNEL}  # what must be read again
        self._has_read = False
        self._unsent: dict[Holder, int] = {}  # the newest version of each that changed in this spell, not yet pushed
        self._has_begun = False  # knows what the workers hold, and may push
        self._started_at = time.monotonic()

    async def run(self) -> None:
        """Lead until the leadership is lost or the task is cancelled; all streams are closed then.

        Raises:
            ExceptionGroup: with the LeadershipLost, or a fault of ours.
        """
        await self._series.claim()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(), name="listen")
                tasks.create_task(self._acks.run(), name="acks")
                tasks.create_task(self._series.run(), name="series")
                tasks.create_task(self._sharing.run(), name="sharing")
                tasks.create_task(keep(self._threads, self._connected), name="roll")
                tasks.create_task(self._balance.run(), name="balance")
                tasks.create_task(self._boosts.run(), name="boosts")
                tasks.create_task(self._reconcile(), name="reconcile")
        finally:
            running = [task for _, task in self._links.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    # ------------------------------------------------------------ loops

    async def _listen(self) -> None:
        async for channels in self._leadership.changes():
            self._due |= channels or {POLICY_CHANNEL, WORKERS_CHANNEL}
            if POLICY_CHANNEL in channels:
                self._boosts.look()
            self._wake.set()

    async def _reconcile(self) -> None:
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._read()
                if self._has_read and self._has_met() and not self._has_begun:
                    await self._balance.begin()
                    self._has_begun = True
            except Error as error:
                # The next poll reads again; what is known goes on being enforced.
                log.warning("truth_unreadable", reason=str(error).strip())
            if self._has_begun:
                self._push()

    def _push(self) -> None:
        """Push what is due; pages hear that their change is on its way before they can hear that it is applied."""
        pushes = self._ledger.plan()
        for push in pushes:
            make = partial(policy_push, push)
            self._links[push.worker][0].send(make if push.num_tokens > LONG_TOKENS else make())
        if pushes:
            num_live = sum(not self._is_stale(worker) for worker in self._known)
            for holder, version in self._unsent.items():
                self._hints.sent(holder.kind, holder.name, version, of=num_live)
            self._unsent.clear()

    # ------------------------------------------------------------ truth

    async def _read(self) -> None:
        due, self._due = self._due, set()
        try:
            if WORKERS_CHANNEL in due:
                self._take_workers(await self._threads.call(read_workers))
            if POLICY_CHANNEL in due:
                await self._read_policies()
        except Error:
            self._due |= due
            raise

    async def _read_policies(self) -> None:
        known = self._ledger.holders
        since = self._ledger.version
        policies = await self._threads.call(read_policies, since, _names(known, "tenant"))
        changed: dict[Holder, Policy] = {tenant(name): policy for name, policy in policies.tenants.items()}
        versions = {tenant(name): policy.version for name, policy in policies.tenants.items()}
        live = {name: group for name, group in policies.share_groups.items() if not group.removed}
        gone = policies.share_groups.keys() - live.keys()
        if policies.is_complete:
            gone |= _names(known, "share_group") - live.keys()
        self._sharing.set_groups(live, gone)
        changed |= {share_group(name): self._sharing.policy(name) for name in live}
        versions |= {share_group(name): group.version for name, group in policies.share_groups.items()}
        removed = {share_group(name) for name in gone}
        if policies.is_complete:
            removed |= {holder for holder in known - changed.keys() if holder.kind == "tenant"}
        # A new leader tells of the newest version, which its predecessor may not have lived to see applied.
        told = since if self._has_read else policies.version - 1
        self._acks.follow(version for version in versions.values() if version > told)
        self._ledger.set_policies(policies.version, changed, removed)
        if self._has_read:  # what a new leader finds may be applied already
            self._unsent |= versions
        self._has_read = True

    async def _prefix(self, prefix_id: str) -> SharedPrefixView | None:
        return await self._threads.call(selectors.shared_prefix, prefix_id)

    def _regrant(self, groups: Collection[str]) -> None:
        """Let groups' prefixes, tokenised since their version was pushed, be pushed; pages hear of the ack."""
        self._acks.follow(self._sharing.version(name) for name in groups)
        changed: dict[Holder, Policy] = {share_group(name): self._sharing.policy(name) for name in groups}
        self._ledger.set_policies(self._ledger.version, changed)
        self._wake.set()

    def _take_workers(self, known: dict[str, KnownWorker]) -> None:
        before, self._known = self._known, known
        for worker in self._links.keys() - known.keys():
            self._links.pop(worker)[1].cancel()
        self._sharing.keep(known.keys())
        for worker, now in known.items():
            then = before.get(worker)
            if then is None or then.view.address != now.view.address or self._links[worker][1].done():
                self._link(worker, now.view.address)
            elif then.view.draining != now.view.draining:
                self._send_drain(worker)
                self._hints.workers()
        self._set_members()
        stale = {worker for worker in known if self._is_stale(worker)}
        for worker in stale - self._stale:
            log.warning("worker_stale", worker=worker, silent_seconds=known[worker].silent_seconds)
        if stale != self._stale or before.keys() != known.keys():
            self._hints.workers()
        self._stale = stale

    def _is_stale(self, worker: str) -> bool:
        return worker not in self._connected and self._known[worker].silent_seconds > WORKER_LIVE_SECONDS

    def _link(self, worker: str, address: str) -> None:
        if worker in self._links:
            self._links[worker][1].cancel()
        dial = Dial(address=address, token=self._dial.token, ca_file=self._dial.ca_file)
        link = WorkerLink(worker, dial, self, self._threads)
        self._links[worker] = (link, asyncio.create_task(link.run(), name=f"link {worker}"))

    def _set_members(self) -> None:
        # A worker that never took a policy holds nothing and gets no share before it can be reached.
        self._met &= self._known.keys()
        self._ledger.set_workers(
            {
                worker: known.view.kv_bytes
                for worker, known in self._known.items()
                if worker in self._met or known.applied_version > 0
            }
        )

    def _has_met(self) -> bool:
        """Say whether all members have told what they hold, or have had the time to."""
        waited = time.monotonic() - self._started_at > MEET_SECONDS
        return waited or all(
            worker in self._connected for worker, known in self._known.items() if known.applied_version > 0
        )

    # ------------------------------------------------------------ what links tell

    async def connected(self, worker_id: str, hello: pb.Hello) -> None:
        """A worker is here: it becomes a member and gets a snapshot."""
        if hello.applied_epoch >> TERM_BITS > self._leadership.term:
            # A later leader's push, unless the database was restored from a backup: make sure that we lead.
            await self._leadership.confirmed()
        if worker_id not in self._known:
            return
        self._connected.add(worker_id)
        self._series.connected(worker_id)
        self._met.add(worker_id)
        self._set_members()
        self._ledger.connect(worker_id, (hello.applied_version, hello.applied_epoch), grants_of(hello))
        self._sharing.connected(worker_id, self._links[worker_id][0].card)
        self._send_drain(worker_id)
        self._stale.discard(worker_id)
        self._hints.workers()
        self._wake.set()

    def disconnected(self, worker_id: str) -> None:
        """A worker's stream is gone; its grants stay with it until it is forgotten."""
        if worker_id in self._connected:
            self._connected.discard(worker_id)
            self._ledger.disconnect(worker_id)
            self._sharing.disconnected(worker_id)
            self._balance.lose_sight(worker_id)
            self._hints.workers()

    def applied(self, worker_id: str, applied: pb.Applied) -> None:
        """A worker has applied a push: record it, and let others grow into what it gave up."""
        version = self._ledger.acknowledge(worker_id, (applied.version, applied.epoch))
        if version:
            seconds = applied.settle_seconds if math.isfinite(applied.settle_seconds) else 0.0
            self._acks.take(Ack(worker_id, version, _moment(applied.at), applied.over_bytes, max(0.0, seconds)))
        self._wake.set()

    def settled(self, worker_id: str, settled: pb.Settled) -> None:
        """Nobody is above the limits of a push that a worker has applied any more: record it."""
        version = self._ledger.settle(worker_id, (settled.version, settled.epoch))
        if version:
            self._acks.take(Settled(worker_id, version, _moment(settled.at)))

    def stats(self, worker_id: str, stats: pb.Stats) -> None:
        """Pass a worker's statistics on to the dashboards and the time series."""
        values = worker_stats(worker_id, stats)
        self._hints.stats(values)
        self._series.take(values)
        self._balance.take(values)

    def _send_drain(self, worker: str) -> None:
        drain = pb.Drain(draining=self._known[worker].view.draining)
        self._links[worker][0].send(pb.ControlCommand(drain=drain))


def _names(holders: Collection[Holder], kind: str) -> frozenset[str]:
    return frozenset(holder.name for holder in holders if holder.kind == kind)


def _moment(at: float) -> float:
    """Return a worker's time, or now where its clock is ahead or says nothing: we cannot hear before it happened."""
    now = time.time()
    return at if math.isfinite(at) and 0 < at < now else now
