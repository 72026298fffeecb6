"""What a store tells the loop in `poll`, and what it tells of itself.

Written    a write has ended
ReadDone   a read has ended
Erased     what one `drop` or `forget` took away is gone from the disk
"""

from collections.abc import Mapping
from typing import NamedTuple

from engine.memory.eviction.base import BlockKey

LATENCY_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # as the protocol says; a last bucket is above all


class Written(NamedTuple):
    """A write has ended; its memory is the caller's again. If ok, the block is readable now and after a restart."""

    key: BlockKey
    ok: bool


class ReadDone(NamedTuple):
    """A read has ended. If not ok, the memory holds nothing of use: the slab is torn, gone or its disk is failing."""

    key: BlockKey
    ok: bool
    seconds: float  # since it was asked for


class Erased(NamedTuple):
    """All that one call took away has been overwritten, on the disk itself."""

    ticket: int  # what `drop`, `drop_session` or `forget` returned


DiskEvent = Written | ReadDone | Erased


class Direction(NamedTuple):
    """What went one way since the store was opened."""

    slabs: int = 0
    num_bytes: int = 0
    seconds: float = 0.0  # of each from the call to the event, added up
    latencies: tuple[int, ...] = (0,) * (len(LATENCY_MS) + 1)  # copies by those seconds


class DiskStats(NamedTuple):
    """A store now, and what it did since it was opened."""

    problem: str  # why it is bypassed; empty: it is healthy
    total_bytes: int
    used_bytes: int  # of slabs that have a block, or are being written
    owners: Mapping[str, int]  # the same by owner
    reads: Direction
    writes: Direction
    num_hits: int  # reads that gave the right bytes
    num_evicted: int  # blocks that were given up for others, or for a lower limit
    num_refused: int  # writes that were not taken
    errors: Mapping[str, int]  # by kind: read, torn, write, full, index, stuck, vanished, closed
    pending_erasures: int
