"""What the loop asks of the threads that do the I/O, and what they answer.

    loop ── Put Wipe Change Stop ──▶ keeper (engine/disk/keeper.py) ── Opened Wrote Wiped Changed Cleared Failed ─▶ loop
         ── Fetch ─────────────────▶ readers (engine/disk/volume.py) ── Fetched ──────────────────────────────────▶

The keeper carries out orders in rounds: first all changes of a round, then its puts and wipes, so a change never relies
on a put before it whose answer has not come.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.disk.contents import Contents
from engine.disk.index import Index
from engine.disk.seal import Sealer
from engine.memory.eviction.base import BlockKey


class Claim:
    """Who may touch a caller's memory: a thread that took it, until it has finished, or the caller.

    Nobody ever waits: whoever pops the only token has it.
    """

    __slots__ = ("_token", "finished")

    def __init__(self) -> None:
        self._token = [None]
        self.finished = False  # it is the caller's for good

    def take(self) -> bool:
        """Take the memory, for the thread; False: its caller has it back."""
        try:
            self._token.pop()
        except IndexError:
            return False
        return True

    def cancel(self) -> bool:
        """Take the memory back, for the caller; False: a thread is at it this moment."""
        if self.take():
            self.finished = True
        return self.finished


@dataclass(slots=True, eq=False)
class Put:
    """Write a slab to a slot. Its row comes after it; that of what the slot held goes before."""

    slot: int
    extent_slots: int  # of the extent that the slot lies in, should it have to be made
    key: BlockKey
    owner: str
    sealer: Sealer
    memory: memoryview
    last_use: float
    value: float
    claim: Claim = field(default_factory=Claim)
    proof: bytes = b""
    error: str = ""  # set by the thread that wrote it


@dataclass(slots=True, eq=False)
class Wipe:
    """Overwrite a slot with zeros."""

    slot: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """Change the index."""

    run: Callable[[Index], None]
    number: int = 0  # answered when it is on the disk; 0: not answered
    erases: bool = False  # also from the log


class Stop(NamedTuple):
    """Close the store cleanly."""

    dirty: list[int]  # slots with bytes of blocks that are gone


@dataclass(slots=True, eq=False)
class Fetch:
    """Read a slab."""

    key: BlockKey
    slot: int
    proof: bytes
    sealer: Sealer
    into: memoryview
    claim: Claim = field(default_factory=Claim)


class Opened(NamedTuple):
    """The store is open: this is what it has. Rows whose slots are not all on the disk any more are not among it."""

    contents: Contents
    per_extent: int
    dirty: list[int]  # slots to be wiped
    stale_bytes: int  # of files that are no part of it, and are being erased


class Wrote(NamedTuple):
    """A put is over."""

    put: Put
    error: str  # its kind; empty: it is on the disk, and so is its row


class Wiped(NamedTuple):
    """A wipe is over."""

    slot: int
    error: str


class Changed(NamedTuple):
    """A change is on the disk."""

    number: int


class Cleared(NamedTuple):
    """A file that was no part of the store is erased."""

    num_bytes: int


class Fetched(NamedTuple):
    """A fetch is over."""

    fetch: Fetch
    error: str


class Failed(NamedTuple):
    """The threads have given up."""

    error: str  # its kind
    reason: str


Order = Put | Wipe | Change | Stop
Answer = Opened | Wrote | Wiped | Changed | Cleared | Fetched | Failed
