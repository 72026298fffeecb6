"""The store, as the loop sees it: every method is called from one thread and returns at once.

open_store ─▶ DiskStore ── write, read, drop, … ──▶ threads that do the I/O
                  ▲                                       │
                  └────────────── poll ◀──────────────────┘
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from engine.disk.events import DiskEvent, DiskStats
from engine.memory.eviction.base import BlockKey


class DiskStore:
    """Blocks on disk by key, with a ceiling for each owner. Not thread-safe; see `open_store`."""

    @property
    def problem(self) -> str:
        """Say why the store is bypassed: nothing is found, read or written until it has recovered. Empty: it is not."""
        raise NotImplementedError

    @property
    def pending_erasures(self) -> int:
        """Count the calls of `drop`, `drop_session` and `forget` whose bytes may still be on the disk."""
        raise NotImplementedError

    def owners(self) -> list[str]:
        """Return all owners of whom anything is stored, those included who have no limit yet (see `limit`)."""
        raise NotImplementedError

    # ------------------------------------------------------------ limits

    def limit(self, owner: str, num_bytes: int, secret: bytes = b"") -> None:
        """Set an owner's ceiling; what is above it is given up at once, the least valuable first.

        Until the first such call after `open_store`, what is stored for an owner is kept but not found. With 0 nothing
        of an owner's is kept, its sessions neither.

        Args:
            owner: a tenant's or a share group's name.
            num_bytes: of whole slabs; what fits the total is all that there is in any case.
            secret: 32 bytes to encrypt with, the same ones after a restart; empty: plain. What was stored under
                another secret, or under none, is erased.
        """
        raise NotImplementedError

    def used(self, owner: str) -> int:
        """Return the bytes of an owner's slabs, those that are being written included."""
        raise NotImplementedError

    # ------------------------------------------------------------ blocks

    def __contains__(self, key: object) -> bool:
        """Whether a block can be read now; one that is still being written cannot."""
        raise NotImplementedError

    def find(self, keys: Sequence[BlockKey], start: int, end: int) -> int:
        """Return how many of `keys[start:end]`, from the first on, can be read now."""
        raise NotImplementedError

    def write(self, key: BlockKey, owner: str, memory: memoryview, *, value: float = 0.0) -> bool:
        """Queue a block to be written, giving up less valuable ones if need be; a Written event ends it.

        Args:
            key: of what it holds.
            owner: whose it is, and whose ceiling it counts against.
            memory: exactly `slot_bytes` of them, which must not change until the event.
            value: what it is worth beyond its recency, in seconds of that.

        Returns:
            False, and no event comes: it is stored or being written already, there is no room for it, the queue is
            full, or the store is bypassed.
        """
        raise NotImplementedError

    def read(self, key: BlockKey, into: memoryview) -> bool:
        """Start to read a block; a ReadDone event ends it.

        Args:
            key: of what is wanted.
            into: exactly `slot_bytes`, writable; theirs is the reader until the event.

        Returns:
            False, and no event comes: it cannot be read (see `__contains__`), or too much is being read.
        """
        raise NotImplementedError

    def touch(self, keys: Iterable[BlockKey], now: float) -> None:
        """Note that blocks were of use at a moment, in unix seconds; unknown ones are passed over."""
        raise NotImplementedError

    def set_value(self, key: BlockKey, value: float) -> None:
        """Say what a block is worth beyond its recency, in seconds of that; an unknown one is passed over."""
        raise NotImplementedError

    # ------------------------------------------------------------ erasing

    def drop(self, keys: Iterable[BlockKey]) -> int:
        """Erase blocks, wherever their bytes still lie; return the ticket of the Erased event, which always comes."""
        raise NotImplementedError

    def forget(self, owner: str) -> int:
        """Erase all of an owner's blocks and sessions, and its limit; return the ticket of the Erased event."""
        raise NotImplementedError

    # ------------------------------------------------------------ sessions

    def put_session(self, owner: str, session: str, record: bytes) -> bool:
        """Keep a small record over a restart, in place of the one before; False: the owner may keep nothing here."""
        raise NotImplementedError

    def drop_session(self, owner: str, session: str) -> int:
        """Erase a session's record; return the ticket of the Erased event."""
        raise NotImplementedError

    def sessions(self, owner: str) -> list[tuple[str, bytes]]:
        """Return an owner's sessions and their records; none before its limit (and with it its secret) is known."""
        raise NotImplementedError

    # ------------------------------------------------------------ the loop

    def poll(self) -> list[DiskEvent]:
        """Return what has ended since the last call, and give up what a failing disk keeps too long.

        Call it at least once a second while anything is under way or the store is bypassed.
        """
        raise NotImplementedError

    def stats(self) -> DiskStats:
        """Return figures."""
        raise NotImplementedError

    def audit(self) -> None:
        """Count everything anew. Raises InvariantError."""
        raise NotImplementedError

    def close(self, seconds: float) -> None:
        """End what is under way, write down what is queued and stop, within so many seconds whatever the disk does."""
        raise NotImplementedError


def open_store(
    folder: Path, slot_bytes: int, total_bytes: int, fingerprint: str, *, wake: Callable[[], None] | None = None
) -> DiskStore:
    """Open the store in a folder, or make it; one that was made for something else is erased.

    A disk that fails now gives a store that is bypassed, and tries again.

    Args:
        folder: its own; made if it is not there. One process at a time.
        slot_bytes: bytes of a slab.
        total_bytes: ceiling of all slabs.
        fingerprint: of the model and the form of its blocks.
        wake: called from other threads whenever `poll` has something to tell.

    Raises:
        ConfigError: the folder cannot be the store's: another process has it, or it is no folder.
    """
    raise NotImplementedError
