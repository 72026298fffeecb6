"""Between host memory and the disk (L3): what is written ahead of its slab's end, and what is read back.

    out   blocks of finished turns, once host memory has them (`keep`); then, where the arena or an account is nearly
          full, the blocks that would be given up next. A block that the disk has is given up for nothing.
    in    one read a block, each into a slab of its own that nobody looks at before it is there (`read`).

A slab is held while the disk reads or writes it. The store does all I/O in threads of its own and may refuse anything
at any time; what it refuses is not written, or computed again.
"""

import time
from collections.abc import Callable, Sequence
from itertools import islice

from engine.disk.events import Erased, ReadDone, Written
from engine.disk.store import DiskStore
from engine.memory.accounts import AccountOwner
from engine.memory.eviction.base import BlockKey
from engine.memory.tiers.host import HostTier
from engine.memory.tiers.hosted import HostAccount, Hosted, Presence
from engine.memory.tiers.rate import CopyRate
from engine.request import SlabId
from engine.step import CacheShape

START_RATE = 500e6  # bytes a second, until something was read
MOST_READS = 16  # slabs under way
MOST_WRITES = 16
LOOK_SECONDS = 0.5  # at least so often, so that the store can give up what takes too long
_RETRY_SECONDS = 0.1  # after the store has refused a write
_NEARLY_FULL = 0.8  # of the arena, or of an account's slabs: what is given up next is written ahead
_WINDOW = 32  # blocks of an account that are looked at, those to go next
_MOST_KEPT = 1 << 16  # blocks that may wait to be written
_KEPT_A_TURN = 64  # of them, those that are looked at in a turn

Memory = Callable[[SlabId], memoryview]


class DiskTier:
    """What moves to the disk and back. Bookkeeping of the blocks there is the store's."""

    def __init__(self, host: HostTier, store: DiskStore, memory: Memory, shape: CacheShape) -> None:
        self.store = store
        self.rate = CopyRate(START_RATE)  # of reads, several at once
        self._host, self._memory, self._block_bytes = host, memory, shape.block_bytes
        self._writes: dict[BlockKey, SlabId] = {}
        self._reads: dict[BlockKey, SlabId] = {}
        self._guesses: set[BlockKey] = set()  # of them, those that no request had asked for
        self._kept: dict[BlockKey, None] = {}  # to be written, in order
        self._awaited: dict[BlockKey, None] = {}  # to be written once host memory has them
        self._fresh = host.watch()  # what has come there
        self._ceilings: dict[AccountOwner, int] = {}
        self._looked_at = 0.0
        self._refused_at = -_RETRY_SECONDS
        self._read_at = 0.0  # when the last look was that found reads under way
        self._seen = (0, 0)  # blocks evicted from host memory, and there, when there was last nothing to write

    @property
    def is_moving(self) -> bool:
        """Whether anything is under way."""
        return bool(self._writes or self._reads or self.store.pending_erasures)

    @property
    def has_work(self) -> bool:
        """Whether there is something to write, and the disk takes it."""
        return bool(self._writes or self._kept) and not self.store.is_bypassed

    @property
    def is_reading(self) -> bool:
        """Whether blocks are being read."""
        return bool(self._reads)

    @property
    def is_full(self) -> bool:
        """Whether no more is read before something has been."""
        return len(self._reads) >= MOST_READS

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for what is being read."""
        return len(self._reads) > len(self._guesses)

    @property
    def num_reading(self) -> int:
        """Blocks that are being read."""
        return len(self._reads)

    def reads(self, key: BlockKey) -> bool:
        """Say whether a block is being read."""
        return key in self._reads

    def is_due(self, now: float) -> bool:
        """Say whether there is something to take in or to start."""
        if self.is_moving or now - self._looked_at >= LOOK_SECONDS:
            return True
        return bool(self._kept or self._fresh) or self._has_changed()

    def next_look(self, now: float) -> float | None:
        """Return when `turn` is to be called again if nothing happens; None: it need not."""
        if self._kept:
            return max(now, self._refused_at + _RETRY_SECONDS)
        return self._looked_at + LOOK_SECONDS if self.is_moving or self.store.problem else None

    # ------------------------------------------------------------ policy

    def limit(self, owner: AccountOwner, num_bytes: int, secret: bytes) -> None:
        """Set an owner's ceiling on the disk."""
        self._ceilings[owner] = num_bytes
        self.store.limit(str(owner), num_bytes, secret)

    def lock(self, owner: AccountOwner) -> None:
        """Leave an owner's blocks on the disk as they are: its secret is still to come."""
        self._ceilings.pop(owner, None)

    def forget(self, owner: AccountOwner) -> int:
        """Erase an owner's blocks; return the ticket of that."""
        self._ceilings.pop(owner, None)
        return self.store.forget(str(owner))

    def drop(self, keys: Sequence[BlockKey]) -> int:
        """Erase blocks; return the ticket of that."""
        for key in keys:
            self._kept.pop(key, None)
            self._awaited.pop(key, None)
        return self.store.drop(keys)

    # ------------------------------------------------------------ in

    def find(self, keys: Sequence[BlockKey], start: int, end: int) -> int:
        """Return how many of `keys[start:end]`, from the first on, are on the disk, in host memory or on their way."""
        host, store = self._host, self.store
        for index in range(start, end):
            if host.get(keys[index]) is None and keys[index] not in store:
                return index - start
        return max(0, end - start)

    def read(self, key: BlockKey, owner: AccountOwner, *, guessed: bool = False) -> bool:
        """Start to read a block into host memory; False if there is no room for it, or it cannot be read now.

        `guessed`: no request waits for it.
        """
        if self.is_full or key not in self.store:
            return False
        slab = self._host.expect(key, owner, None)
        if slab is None:
            return False
        if not self.store.read(key, self._memory(slab)):
            self._host.arrived(slab, ok=False)
            return False
        if not self._reads:
            self._read_at = time.monotonic()
        self._reads[key] = slab
        if guessed:
            self._guesses.add(key)
        return True

    # ------------------------------------------------------------ out

    def keep(self, keys: Sequence[BlockKey]) -> None:
        """Write blocks as soon as host memory has them: they will be wanted again, after a restart too."""
        for key in keys:
            self._awaited.pop(key, None)
            if self._is_ready(key):
                self._kept[key] = None
            else:
                self._awaited[key] = None
        for waiting in (self._kept, self._awaited):
            while len(waiting) > _MOST_KEPT:
                del waiting[next(iter(waiting))]

    def turn(self, now: float) -> list[int]:
        """Take in what has ended, and start what there is to write; return the tickets of what has been erased."""
        self._looked_at = now
        erased: list[int] = []
        num_read = 0
        for event in self.store.poll():
            match event:
                case Written(key, ok):
                    self._written(key, ok=ok, now=now)
                case ReadDone(key, ok, _):
                    self._host.arrived(self._reads.pop(key), ok=ok)
                    self._guesses.discard(key)
                    num_read += 1
                case Erased(ticket):
                    erased.append(ticket)
        if num_read:
            self._measure(num_read)
        while self._fresh:
            key = self._fresh.popleft()
            if self._awaited and key in self._awaited:
                del self._awaited[key]
                self._kept[key] = None
        if now - self._refused_at >= _RETRY_SECONDS and (self._kept or self._has_changed()):
            self._write(now)
        return erased

    def _written(self, key: BlockKey, *, ok: bool, now: float) -> None:
        """Let go of what has been written; where that failed it is tried again, after a while."""
        slab, entry = self._writes.pop(key), self._host.get(key)
        if not ok and entry is not None and entry.slab == slab:
            entry.saved = False
            self._kept[key] = None
            self._refused_at = now
        self._host.let_go(slab)

    def _measure(self, num_read: int) -> None:
        at = time.monotonic()
        self.rate.observe(num_read * self._block_bytes, at - self._read_at)
        self._read_at = at

    def _has_changed(self) -> bool:
        """Say whether enough has happened since there was nothing to write."""
        host, (evicted, used) = self._host, self._seen
        return 2 * (host.num_evicted - evicted + abs(host.num_used - used)) >= min(_WINDOW, max(1, host.num_slabs // 8))

    def _write(self, now: float) -> None:
        """Start writes, kept blocks first, until the store takes no more."""
        host = self._host
        for key in list(islice(self._kept, _KEPT_A_TURN)):
            entry = host.get(key)
            if entry is not None and entry.presence is Presence.READY and not self._start(entry, now):
                return
            del self._kept[key]
        while host.restless:
            account = next(iter(host.restless))
            if self._ceilings.get(account.owner) and self._is_nearly_full(account):
                for entry in account.tail(_WINDOW):
                    if not entry.saved and not self._start(entry, now):
                        return
            del host.restless[account]
        self._seen = (host.num_evicted, host.num_used)

    def _is_ready(self, key: BlockKey) -> bool:
        entry = self._host.get(key)
        return entry is not None and entry.presence is Presence.READY

    def _is_nearly_full(self, account: HostAccount) -> bool:
        host = self._host
        return host.num_used > _NEARLY_FULL * host.num_slabs or account.used > _NEARLY_FULL * account.ceiling

    def _start(self, entry: Hosted, now: float) -> bool:
        """Start to write a block, if the disk is to have it and does not yet; False if the store takes no more now."""
        key, owner = entry.key, entry.account.owner
        if not self._ceilings.get(owner) or key in self._writes or key in self.store:
            entry.saved = True
            return True
        if len(self._writes) >= MOST_WRITES or self.store.is_bypassed:
            self._refused_at = now
            return False
        slab = self._host.hold(entry)
        worth = max(0.0, self._host.worth(entry) - entry.last_use)
        entry.saved = True  # or it is refused: then there is no room for it
        if self.store.write(key, str(owner), self._memory(slab), value=worth):
            self._writes[key] = slab
            return True
        self._host.let_go(slab)
        if not self._writes:
            return True
        entry.saved = False
        self._refused_at = now
        return False
