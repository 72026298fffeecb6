"""What the index says (engine/disk/index.py), and whether that makes sense."""

import math
from typing import NamedTuple

from engine.memory.eviction.base import BlockKey


class SpoiltIndex(Exception):
    """The file is no index of this store, or its content makes no sense."""


class Row(NamedTuple):
    """A slab as the index has it."""

    slot: int
    key: BlockKey
    owner: str
    proof: bytes
    last_use: float  # unix seconds
    value: float  # seconds


class SessionRow(NamedTuple):
    """A session's record as the index has it."""

    owner: str
    name: bytes
    record: bytes


class Contents(NamedTuple):
    """All that the index says."""

    clean: bool
    extents: dict[int, int]  # → slots
    owners: dict[str, bytes]  # → check of its sealer
    rows: list[Row]
    sessions: list[SessionRow]
    dirty: list[int]


def check(contents: Contents, per_extent: int) -> None:
    """Check what SQLite does not: it stores whatever a flipped bit makes of a value. Raises SpoiltIndex."""
    slots = {
        slot
        for extent, num_slots in contents.extents.items()
        if _is_count(extent) and _is_count(num_slots) and num_slots <= per_extent
        for slot in range(extent * per_extent, extent * per_extent + num_slots)
    }
    if len(slots) != sum(contents.extents.values()) or not set(contents.dirty) <= slots:
        raise SpoiltIndex("its extents make no sense")
    if any(not (isinstance(name, str) and name and isinstance(mark, bytes)) for name, mark in contents.owners.items()):
        raise SpoiltIndex("its owners make no sense")
    keys = {row.key for row in contents.rows}
    if len(keys) != len(contents.rows) or not all(_makes_sense(row, slots) for row in contents.rows):
        raise SpoiltIndex("its slabs make no sense")
    if any(not (s.owner and isinstance(s.name, bytes) and isinstance(s.record, bytes)) for s in contents.sessions):
        raise SpoiltIndex("its sessions make no sense")


def _makes_sense(row: Row, slots: set[int]) -> bool:
    return (
        row.slot in slots
        and isinstance(row.key, bytes)
        and len(row.key) == 32
        and bool(row.owner)
        and isinstance(row.proof, bytes)
        and all(isinstance(number, float) and math.isfinite(number) for number in (row.last_use, row.value))
    )


def _is_count(number: object) -> bool:
    return isinstance(number, int) and 0 <= number < 1 << 32
