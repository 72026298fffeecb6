"""All tiers together: what sessions and policies ask of them, and the moments of a step at which bytes move.

before a plan     what has been copied, read and written counts from here on (`collect`)
before a launch   what is being erased is overwritten (`before_launch`)
after a launch    copies start that run beside the steps that follow (`start`)
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.disk.figures import Tally
from engine.disk.store import DiskStore
from engine.memory.accounts import AccountOwner
from engine.memory.eviction.base import BlockKey
from engine.memory.pool import CACHED
from engine.memory.supply import Supply
from engine.memory.tiers.disk import MOST_READS, DiskTier
from engine.memory.tiers.erasure import Erasure, Wiper
from engine.memory.tiers.figures import DEVICE, DISK, HOST, TrafficCounts
from engine.memory.tiers.mover import Mover
from engine.policy import TenantPolicy
from engine.step import CacheShape, Runner, StepPlan, StepResult

WIPED_BYTES = 32 << 20  # of blocks, in a step: some milliseconds
_POLL_SECONDS = 0.001  # between looks at copies that somebody may wait for
_WRITE_POLL_SECONDS = 0.01
_MOST_PREFETCHES = 64
_MOST_GUESSED = MOST_READS // 2  # reads under way, while a guess asks for more
_WORTHLESS = -1e9  # seconds of recency
_SPARE_SLABS = 0.1  # of the arena, that guesses leave free


@dataclass(slots=True)
class _Prefetch:
    """Blocks that are about to be asked for."""

    owner: AccountOwner
    keys: Sequence[BlockKey]
    asked: int = 0  # of them, the first ones: here, or asked for from the disk
    settled: int = 0  # of these, the first ones: here, or never


class Tiers:
    """The one door to everything below the device. Without slabs, or without a disk, there is less to do."""

    def __init__(self, supply: Supply, mover: Mover, shape: CacheShape) -> None:
        self.disk: DiskTier | None = None
        self.mover = mover
        self.read_blocks = 0  # from the disk for a guess
        self.hit_tokens = dict.fromkeys((DEVICE, HOST, DISK), 0)  # of prompts, when they were first admitted
        self._supply, self._host, self._shape = supply, supply.host, shape
        self._wiper = Wiper(supply, mover, supply.host)
        self._prefetches: list[_Prefetch] = []
        self._ticket = 0
        self._out, self._back = Tally(), Tally()

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

    def forget(self, owner: AccountOwner) -> None:
        """Erase what an owner has below the device."""
        self._host.forget(owner)
        self.mover.forget_owner(owner)
        self._prefetches = [one for one in self._prefetches if one.owner != owner]
        if self.disk is not None:
            self.disk.forget(owner)

    def keep_only(self, owners: Iterable[AccountOwner]) -> None:
        """Erase what the disk has of others: their tenants were taken away while nobody was here to be told."""
        if self.disk is not None:
            known = set(map(str, owners))
            for owner in self.disk.store.owners():
                if owner not in known:
                    self.disk.store.forget(owner)

    # ------------------------------------------------------------ sessions

    def park(self, keys: Sequence[BlockKey]) -> None:
        """Copy blocks down soon: they will be asked for again, though not at once."""
        self.mover.park(keys)
        if self.disk is not None:
            self.disk.keep(keys)

    def prefetch(self, owner: AccountOwner, keys: Sequence[BlockKey]) -> None:
        """Bring a chain of blocks up, first to last, where that costs nobody anything: it is about to be asked for."""
        if self._host.keeps(owner) and keys:
            self._prefetches = [*self._prefetches[1 - _MOST_PREFETCHES :], _Prefetch(owner, keys)]

    def demote(self, keys: Sequence[BlockKey]) -> None:
        """Make blocks the first to go, in host memory and on disk: they are kept for nobody any more."""
        for key in keys:
            entry = self._host.get(key)
            if entry is not None:
                self._host.demote(entry)
            if self.disk is not None:
                self.disk.store.set_value(key, _WORTHLESS)

    def erase(self, owner: AccountOwner, keys: Sequence[BlockKey], session: str = "") -> int:
        """Erase blocks of an owner from every tier, and a session's record; return a ticket for `take_erased`.

        Those that a live request uses or waits for stay.
        """
        self.mover.forget(keys)
        self._prefetches = [one for one in self._prefetches if one.owner != owner]
        gone: list[BlockKey] = []
        for key in reversed(keys):
            block = self._supply.tree.get(key)
            if block is not None and self._supply.pool.state(block) == CACHED:
                self._supply.erase(block)
            elif block is not None or self._host.claims.wants(key):
                continue
            gone.append(key)
            if self._host.get(key) is not None:
                self._host.drop(key, erase=True)
        tickets: set[int] = set()
        if self.disk is not None:
            tickets = {self.disk.drop(gone)} if gone else set()
            if session:
                tickets.add(self.disk.store.drop_session(str(owner), session))
        return self._erase(gone, tickets)

    def erase_free(self) -> int:
        """Overwrite what is free, which may hold what was just given up; return a ticket for `take_erased`."""
        return self._erase((), set())

    @property
    def is_erasing(self) -> bool:
        """Whether something is being erased."""
        return self._wiper.is_busy

    def take_erased(self) -> list[int]:
        """Return the tickets of all of which nothing is left in any tier, each once."""
        return self._wiper.take_done()

    def where(self, key: BlockKey) -> tuple[bool, bool, bool]:
        """Say whether device, host memory and disk have a block."""
        is_on_disk = self.disk is not None and key in self.disk.store
        return self._supply.tree.get(key) is not None, self._host.get(key) is not None, is_on_disk

    def put_session(self, owner: AccountOwner, session: str, record: bytes) -> None:
        """Keep a session's record over a restart, if its owner may keep anything on disk."""
        if self.disk is not None:
            self.disk.store.put_session(str(owner), session, record)

    def drop_session(self, owner: AccountOwner, session: str) -> None:
        """Let a session's record go."""
        if self.disk is not None:
            self.disk.store.drop_session(str(owner), session)

    def sessions(self, owner: AccountOwner) -> list[tuple[str, bytes]] | None:
        """Return the records that an earlier process has left of an owner's sessions; None while they are not read."""
        if self.disk is None:
            return []
        return None if self.disk.store.is_bypassed else self.disk.store.sessions(str(owner))

    def may_have_left(self, owner: AccountOwner) -> bool:
        """Say whether an earlier process may have left anything of an owner on disk."""
        return self.disk is not None and self.disk.store.may_have(str(owner))

    def found(self, num_tokens: int, num_loaded: int, num_from_disk: int) -> None:
        """Count the tokens of a prompt that a request need not compute; so many blocks of them had left the device."""
        size, hits = self._shape.block_size, self.hit_tokens
        hits[DEVICE] += num_tokens - num_loaded * size
        hits[HOST] += (num_loaded - num_from_disk) * size
        hits[DISK] += num_from_disk * size

    # ------------------------------------------------------------ a step

    def collect(self, runner: Runner, now: float) -> None:
        """Take in what has been copied, read and written."""
        self._host.now = now
        if self.mover.is_moving:
            for transfer, seconds in self.mover.done(runner.copied()):
                traffic = self._out if transfer.is_store else self._back
                traffic.add(len(transfer.moves) * self._shape.block_bytes, seconds, len(transfer.moves))
        if self.disk is not None and self.disk.is_due(now):
            for ticket in self.disk.turn(now):
                self._wiper.erased_on_disk(ticket)
        if self._prefetches:
            self._prefetch()
        self._wiper.settle()

    def before_launch(self, runner: Runner, plan: StepPlan | None) -> None:
        """Overwrite what is being erased, before a step can use it for something else."""
        if self._wiper.is_busy:
            blocks = self._wiper.take_blocks(plan, max(1, WIPED_BYTES // self._shape.block_bytes))
            if blocks:
                runner.wipe_blocks(blocks)
        if plan is not None:
            self._wiper.used(plan.poison)

    def start(self, runner: Runner) -> None:
        """Start copies beside the steps that were launched and those that will be."""
        for transfer in self.mover.take():
            if not transfer.is_store:
                self._wiper.filled(move.block for move in transfer.moves)
            runner.copy(transfer)

    def finish(self, runner: Runner, seconds: float) -> None:
        """Let copies under way end and what is parked reach the disk, for so long at most: nothing runs any more."""
        end = time.monotonic() + seconds
        now = self._host.now
        while time.monotonic() < end:
            self.collect(runner, now)
            self.start(runner)
            is_writing = self.disk is not None and self.disk.has_work
            if not (self.mover.has_work or is_writing):
                return
            time.sleep(_POLL_SECONDS)
            now += _POLL_SECONDS

    def next_look(self, now: float) -> float | None:
        """Return when the loop must come back even if nothing happens; None: it need not."""
        if self.mover.has_work or self._wiper.is_busy or (self.disk is not None and self.disk.is_reading):
            return now + _POLL_SECONDS
        if self.disk is None:
            return None
        return now + _WRITE_POLL_SECONDS if self.disk.is_moving else self.disk.next_look(now)

    def traffic(self) -> tuple[TrafficCounts, ...]:
        """Return what went between the tiers, beside the steps."""
        ways = [(DEVICE, HOST, self._out.read()), (HOST, DEVICE, self._back.read())]
        if self.disk is not None:
            stats = self.disk.store.stats()
            ways += [(HOST, DISK, stats.writes), (DISK, HOST, stats.reads)]
        return tuple(TrafficCounts(source, target, *one) for source, target, one in ways)

    def count_steps(self, plan: StepPlan, result: StepResult) -> None:
        """Count what a step has copied."""
        for traffic, count, seconds in (
            (self._out, len(plan.stores), result.store_seconds),
            (self._back, len(plan.loads), result.load_seconds),
        ):
            if count:
                traffic.add(count * self._shape.block_bytes, seconds, count)

    # ------------------------------------------------------------ parts

    def _erase(self, keys: Sequence[BlockKey], disk_tickets: set[int]) -> int:
        self._ticket += 1
        self._wiper.add(Erasure(self._ticket, keys, disk_tickets))
        return self._ticket

    def _prefetch(self) -> None:
        """Ask the disk for what is expected, and have what is there brought to the device. Requests go first."""
        if self.disk is not None and self.disk.is_awaited:
            return
        for one in list(self._prefetches):
            while one.asked < len(one.keys) and self._is_coming(one.owner, one.keys[one.asked]):
                one.asked += 1
            disk = self.disk
            while one.settled < one.asked and not (disk is not None and disk.reads(one.keys[one.settled])):
                one.settled += 1
            if one.settled == one.asked and (disk is None or disk.num_reading < _MOST_GUESSED):
                self._prefetches.remove(one)
                self.mover.bring(one.owner, one.keys)

    def _is_coming(self, owner: AccountOwner, key: BlockKey) -> bool:
        """Say whether a block is above the disk, or will be now."""
        host, disk = self._host, self.disk
        if self._supply.tree.get(key) is not None or host.get(key) is not None:
            return True
        if disk is None or disk.num_reading >= _MOST_GUESSED or not host.has_spare(owner, _SPARE_SLABS):
            return False
        if not disk.read(key, owner, guessed=True):
            return False
        self.read_blocks += 1
        entry = host.get(key)
        assert entry is not None, "it is being read"
        entry.guessed = True
        return True
