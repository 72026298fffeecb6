"""All tiers together: what sessions and policies ask of them, and the moments of a step at which bytes move.

before a plan     what has been copied, read and written counts from here on (`collect`)
before a launch   what is being erased is overwritten (`before_launch`)
after a launch    copies start that run beside the steps that follow (`start`)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.disk.store import DiskStore
from engine.memory.accounts import AccountOwner
from engine.memory.eviction.base import BlockKey
from engine.memory.pool import CACHED
from engine.memory.supply import Supply
from engine.memory.tiers.disk import MOST_READS, DiskTier
from engine.memory.tiers.erasure import Erasure, Wiper
from engine.memory.tiers.figures import DEVICE, DISK, HOST, Traffic, TrafficCounts
from engine.memory.tiers.mover import Mover
from engine.policy import TenantPolicy
from engine.step import CacheShape, Runner, StepPlan

WIPED_BYTES = 32 << 20  # of blocks, in a step: some milliseconds
_POLL_SECONDS = 0.001  # between looks at copies that somebody may wait for
_WRITE_POLL_SECONDS = 0.01
_MOST_PREFETCHES = 64
_SPARE_SLABS = 0.1  # of the arena, that guesses leave free


class Whereabouts(NamedTuple):
    """How many of some blocks each tier has; a block may be in several."""

    device: int
    host: int
    disk: int


@dataclass(slots=True)
class _Prefetch:
    """Blocks that are about to be asked for."""

    owner: AccountOwner
    keys: Sequence[BlockKey]
    asked: int = 0  # of them, the first ones: here, or asked for from the disk


class Tiers:
    """The one door to everything below the device. Without slabs, or without a disk, there is less to do."""

    def __init__(self, supply: Supply, mover: Mover, shape: CacheShape) -> None:
        self.disk: DiskTier | None = None
        self.mover = mover
        self.read_blocks = 0  # from the disk for a guess
        self._supply, self._host, self._shape = supply, supply.host, shape
        self._wiper = Wiper(supply, mover, supply.host)
        self._prefetches: list[_Prefetch] = []
        self._out, self._back = Traffic(), Traffic()

    def attach(self, store: DiskStore, runner: Runner) -> None:
        """Have a disk below host memory. Without slabs there is no way there."""
        if self._host.num_slabs:
            self.disk = DiskTier(self._host, store, runner.slab_memory, self._shape)

    # ------------------------------------------------------------ policies

    def limit(self, policy: TenantPolicy) -> None:
        """Set a tenant's ceilings below the device; what is above them is given up."""
        self._host.limit(policy.tenant, policy.host_bytes // self._shape.block_bytes)
        if self.disk is None:
            return
        if policy.disk_locked:
            self.disk.lock(policy.tenant)
        else:
            self.disk.limit(policy.tenant, policy.disk_bytes, policy.disk_secret)

    def forget(self, owner: AccountOwner) -> Erasure:
        """Erase what an owner has below the device, and what is free there may hold of it."""
        self._host.forget(owner)
        self.mover.forget_owner(owner)
        self._prefetches = [one for one in self._prefetches if one.owner != owner]
        ticket = self.disk.forget(owner) if self.disk is not None else None
        return self._erase((), ticket)

    def keep_only(self, owners: Iterable[AccountOwner]) -> None:
        """Erase what the disk has of others: their tenants were taken away while nobody was here to be told."""
        if self.disk is not None:
            known = set(map(str, owners))
            for owner in self.disk.store.owners():
                if owner not in known:
                    self.disk.store.forget(owner)

    # ------------------------------------------------------------ sessions

    def park(self, owner: AccountOwner, keys: Sequence[BlockKey]) -> None:
        """Copy blocks down soon: they will be asked for again, though not at once."""
        del owner
        self.mover.park(keys)
        if self.disk is not None:
            self.disk.keep(keys)

    def prefetch(self, owner: AccountOwner, keys: Sequence[BlockKey]) -> None:
        """Bring a chain of blocks up, first to last, where that costs nobody anything: it is about to be asked for."""
        if self._host.keeps(owner) and keys:
            self._prefetches = [*self._prefetches[1 - _MOST_PREFETCHES :], _Prefetch(owner, keys)]

    def erase(self, owner: AccountOwner, keys: Sequence[BlockKey]) -> Erasure:
        """Erase blocks of an owner from every tier; `Erasure.is_done` says when nothing of them is left.

        Those that a live request uses or waits for stay.
        """
        self.mover.forget(keys)
        self._prefetches = [one for one in self._prefetches if one.owner != owner]
        gone: list[BlockKey] = []
        for key in reversed(keys):
            block = self._supply.tree.get(key)
            if block is not None and self._supply.pool.state(block) == CACHED:
                self._supply.erase(block)
            elif block is not None or self._host.wants(key):
                continue
            gone.append(key)
            if self._host.get(key) is not None:
                self._host.drop(key, erase=True)
        return self._erase(gone, self.disk.drop(gone) if self.disk is not None and gone else None)

    def erase_free(self) -> Erasure:
        """Overwrite what is free: it may hold what was just given up."""
        return self._erase((), None)

    def where(self, keys: Sequence[BlockKey]) -> Whereabouts:
        """Count where blocks are."""
        tree, host, disk = self._supply.tree, self._host, self.disk
        return Whereabouts(
            sum(tree.get(key) is not None for key in keys),
            sum(host.get(key) is not None for key in keys),
            sum(key in disk.store for key in keys) if disk is not None else 0,
        )

    # ------------------------------------------------------------ a step

    def collect(self, runner: Runner, now: float) -> None:
        """Take in what has been copied, read and written."""
        self._host.now = now
        if self.mover.is_moving:
            for transfer, seconds in self.mover.done(runner.copied()):
                traffic = self._out if transfer.is_store else self._back
                traffic.add(len(transfer.moves), len(transfer.moves) * self._shape.block_bytes, seconds)
        if self.disk is not None and self.disk.is_due(now):
            self.disk.turn(now)
        if self._prefetches:
            self._prefetch()
        if self._wiper.is_busy:
            self._wiper.take_done(self.disk.erased if self.disk is not None else set())

    def before_launch(self, runner: Runner, plan: StepPlan | None) -> None:
        """Overwrite what is being erased, before a step can use it for something else."""
        if self._wiper.is_busy:
            allocated = plan.poison if plan is not None else ()
            blocks = self._wiper.take_blocks(allocated, max(1, WIPED_BYTES // self._shape.block_bytes))
            if blocks:
                runner.wipe_blocks(blocks)

    def start(self, runner: Runner) -> None:
        """Start copies beside the steps that were launched and those that will be."""
        for transfer in self.mover.take():
            runner.copy(transfer)

    def next_look(self, now: float) -> float | None:
        """Return when the loop must come back even if nothing happens; None: it need not."""
        if self.mover.has_work or self._wiper.is_busy or (self.disk is not None and self.disk.is_reading):
            return now + _POLL_SECONDS
        if self.disk is None:
            return None
        return now + _WRITE_POLL_SECONDS if self.disk.is_moving else self.disk.next_look(now)

    def traffic(self) -> tuple[TrafficCounts, ...]:
        """Return what went between the tiers, beside the steps."""
        found = [self._out.counts(DEVICE, HOST), self._back.counts(HOST, DEVICE)]
        if self.disk is not None:
            stats = self.disk.store.stats()
            for source, target, one in ((HOST, DISK, stats.writes), (DISK, HOST, stats.reads)):
                found.append(TrafficCounts(source, target, one.slabs, one.num_bytes, one.seconds, tuple(one.latencies)))
        return tuple(found)

    def count_steps(self, num_stored: int, store_seconds: float, num_loaded: int, load_seconds: float) -> None:
        """Count what a step has copied."""
        for traffic, count, seconds in (
            (self._out, num_stored, store_seconds),
            (self._back, num_loaded, load_seconds),
        ):
            if count:
                traffic.add(count, count * self._shape.block_bytes, seconds)

    # ------------------------------------------------------------ parts

    def _erase(self, keys: Sequence[BlockKey], ticket: int | None) -> Erasure:
        erasure = Erasure(keys, ticket)
        self._wiper.add(erasure)
        return erasure

    def _prefetch(self) -> None:
        """Ask the disk for what is expected, and have what is there brought to the device."""
        for one in list(self._prefetches):
            while one.asked < len(one.keys) and self._is_coming(one.owner, one.keys[one.asked]):
                one.asked += 1
            is_reading = self.disk is not None and any(map(self.disk.reads, one.keys[: one.asked]))
            if not is_reading:
                self._prefetches.remove(one)
                self.mover.bring(one.owner, one.keys)

    def _is_coming(self, owner: AccountOwner, key: BlockKey) -> bool:
        """Say whether a block is above the disk, or will be now."""
        host, disk = self._host, self.disk
        if self._supply.tree.get(key) is not None or host.get(key) is not None:
            return True
        if disk is None or disk.num_reading >= MOST_READS // 2 or not host.has_spare(owner, _SPARE_SLABS):
            return False
        if not disk.read(key, owner):
            return False
        self.read_blocks += 1
        entry = host.get(key)
        assert entry is not None, "it is being read"
        entry.guessed = True
        return True
