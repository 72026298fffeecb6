"""Random traffic over all tiers, from a seed: transfers that end late and in any order, a real disk that fails, turns
that park, guesses, erasures, and cores that start again over what the last one has left on the disk.

Whatever happens, every token is what its request would get alone, and nothing is left in use at the end.
"""

import errno
import threading
from pathlib import Path
from typing import Any

from engine.disk.extents import stride_of
from engine.disk.store import DiskStore, Patience, open_store
from engine.memory.eviction.base import BlockKey
from engine.request import SequenceId, TenantId
from tests.engine.costs import set_costs
from tests.engine.disk.stores import DEADLINE, FailingFiles, extents
from tests.engine.traffic import STOPS, TENANTS, Traffic, check_all_ended
from tests.engine.world import World

_PATIENCE = Patience(read_seconds=DEADLINE, retry_seconds=0.01, again_seconds=0.01)
_NUM_SLOTS = 200
_SLOTS_OF_AN_EXTENT = 16


class TieredWorld(World):
    """A world with a disk in a folder; what an earlier one has left there is found."""

    def __init__(self, folder: Path, *, before: "TieredWorld | None" = None, **options: Any) -> None:
        super().__init__(**options)
        self.files = FailingFiles()
        stride = stride_of(self.runner.slab_bytes)
        self.folder = folder
        self.store: DiskStore = open_store(
            folder,
            self.runner.slab_bytes,
            _NUM_SLOTS * stride,
            "model",
            patience=_PATIENCE,
            files=self.files,
            extent_bytes=_SLOTS_OF_AN_EXTENT * stride,
        )
        self.scheduler.memory.tiers.attach(self.store, self.runner)
        self.disk_bytes = _NUM_SLOTS * stride
        if before is not None:  # who may read what, and what is in it, outlives a core
            self._identities, self._contents = before._identities, before._contents

    def step(self, seconds: float = 0.01) -> bool:
        """Run one step; where nothing runs, wait for the disk."""
        is_busy = super().step(seconds)
        tiers = self.scheduler.memory.tiers
        if self.plan is None:
            self.now += 0.0 if self.scheduler.roster.running else 0.001
            if tiers.disk is not None and tiers.disk.is_moving:
                threading.Event().wait(0.001)  # as the loop does
        return is_busy

    def close(self) -> None:
        """Stop, as a core does."""
        self.files.release()
        self.files.failing.clear()
        self.store.close(DEADLINE)


class TieredTraffic(Traffic):
    """Traffic over a world with all tiers, and what only these can do."""

    world: TieredWorld

    def __init__(self, seed: int, folder: Path, *, num_blocks: int = 64, ahead: bool = False) -> None:
        self.folder = folder
        self.num_restarts = 0
        self.counts = {"fetched": 0, "stored": 0, "brought": 0, "read": 0, "late": 0}
        self._ahead = ahead
        self._num_blocks = num_blocks
        self._past: dict[tuple[TenantId, bytes, tuple[int, ...]], list[int]] = {}  # outputs of all cores
        self._seed = seed
        super().__init__(seed, self._make(seed))

    def _make(self, seed: int, before: TieredWorld | None = None) -> TieredWorld:
        world = TieredWorld(
            self.folder,
            before=before,
            num_blocks=self._num_blocks,
            block_size=4,
            max_rows=12,
            budget=24,
            max_context=128,
            eos=STOPS,
            ahead=self._ahead,
            num_slabs=96,
            lateness=self._is_late,
        )
        set_costs(world, (1.0, 0.7, 0.3)[seed % 3], seed)
        return world

    def _is_late(self) -> bool:
        return self.chance.random() < 0.6

    def _event(self) -> None:
        often = (self._park, self._park, self._park, self._prefetch, self._again, self._again, self._heal)
        rare = (self._erase, self._break, self._tear, self._push_out)
        if self.chance.random() < 0.4:
            self.chance.choice(often if self.chance.random() < 0.8 else rare)()
        elif self.chance.random() < 0.01:
            self._restart()
        else:
            super()._event()

    def _set_policy(self, tenant: str) -> None:
        chance, num_blocks = self.chance, self.world.shape.num_blocks
        self.world.policy(
            tenant,
            blocks=chance.choice((num_blocks, chance.randint(0, num_blocks))),
            soft=chance.choice((0, num_blocks // 4, chance.randint(0, num_blocks))),
            slabs=chance.choice((96, 96, chance.randint(0, 96))),
            max_running=chance.choice((8, chance.randint(0, 5))),
            weight=chance.choice((0.1, 1.0, 8.0)),
            share_groups=tuple(group for group in ("bank", "shop") if chance.random() < 0.3),
            disk_bytes=chance.choice((self.world.disk_bytes, self.world.disk_bytes, self.world.disk_bytes // 8, 0)),
        )

    # ------------------------------------------------------------ what is left of a request

    def _chain(self) -> tuple[TenantId, list[BlockKey]]:
        """Return the keys of a request's prompt and output, as a session would keep them."""
        world = self.world
        if not world.requests:
            return TenantId("minnow"), []
        sequence = self.chance.choice(list(world.requests)[-12:])
        request, tokens = world.requests[sequence], [*world.requests[sequence].prompt, *world.tokens[sequence]]
        account = world.scheduler.memory.accounts.get(request.tenant)
        chain = None if account is None else world.scheduler.memory.lookup.chain(account, request.namespace)
        if chain is None:
            return request.tenant, []
        chain.extend(tokens, (len(tokens) - 1) // world.shape.block_size)
        return request.tenant, chain.keys

    def _park(self) -> None:
        """A turn has ended."""
        self.world.scheduler.memory.tiers.park(self._chain()[1])

    def _prefetch(self) -> None:
        """A turn is about to come."""
        self.world.scheduler.memory.tiers.prefetch(*self._chain())

    def _again(self) -> None:
        """The next turn of a request comes, perhaps one of an earlier core."""
        past = self._past
        for sequence in list(self.world.finished):
            if not isinstance(sequence, tuple):
                request = self.world.requests[sequence]
                past[request.tenant, request.namespace, tuple(request.prompt)] = self.world.tokens[sequence]
        if past:
            tenant, namespace, prompt = self.chance.choice(list(past)[-24:])
            tokens = [*prompt, *past[tenant, namespace, prompt]][:100]
            self.world.submit(tenant, [*tokens, 1, 2, 3], self.chance.randint(1, 9), namespace=namespace)

    def _push_out(self) -> None:
        """A tenant's blocks leave the device for a moment."""
        tenant = self.chance.choice(TENANTS)
        self.world.policy(tenant, blocks=0, slabs=96, disk_bytes=self.world.disk_bytes)
        self._steps()
        self._set_policy(tenant)

    def _erase(self) -> None:
        """A session is erased."""
        tenant, keys = self._chain()
        tiers = self.world.scheduler.memory.tiers
        tiers.erase(tenant, keys)

    # ------------------------------------------------------------ the disk

    def _break(self) -> None:
        """The disk fails, is full, or takes its time."""
        call = self.chance.choice(("read", "write", "allocate", "sync", "hold"))
        if call == "hold":
            self.world.files.hold("read")
        else:
            self.world.files.fail(call, code=self.chance.choice((errno.EIO, errno.ENOSPC)))

    def _heal(self) -> None:
        """All is well with it."""
        self.world.files.release()
        self.world.files.failing.clear()

    def _tear(self) -> None:
        """Bytes of a slab change where they lie."""
        found = extents(self.folder)
        if found:
            with self.chance.choice(found).open("r+b") as file:
                file.seek(self.chance.randrange(self.world.disk_bytes // _NUM_SLOTS * _SLOTS_OF_AN_EXTENT))
                file.write(b"torn")

    def _restart(self) -> None:
        """A core stops, its requests with it, and another one starts over the same disk."""
        world = self.world
        world.cancel(*(SequenceId(one) for one in list(world.scheduler.roster.sequences) if one > 0))
        self._finish()
        self.num_restarts += 1
        self.world = self._make(self._seed + self.num_restarts, world)
        for tenant in TENANTS:
            self._set_policy(tenant)

    def _finish(self) -> None:
        """Let all end, in every tier, and stop."""
        self._heal()
        for tenant in TENANTS:
            self.world.policy(
                tenant, blocks=self._num_blocks, max_running=10, slabs=96, disk_bytes=self.world.disk_bytes
            )
        tiers = self.world.scheduler.memory.tiers
        for _ in range(20_000):
            if not self._step(0.01):
                break
        check_all_ended(self.world)
        assert not tiers.is_erasing, "an erasure never ends"
        assert not tiers.mover.is_moving, "nor does a copy"
        self._count()
        self.world.close()

    def _count(self) -> None:
        roster, tiers = self.world.scheduler.roster, self.world.scheduler.memory.tiers
        host = self.world.scheduler.memory.host
        self.counts["fetched"] += roster.fetching.num_chosen
        self.counts["late"] += roster.fetching.num_late
        self.counts["stored"] += tiers.mover.stored_blocks
        self.counts["brought"] += tiers.mover.brought_blocks
        self.counts["read"] += host.num_from_disk
