"""Which slots may be written to next, and what lies in those that no block has.

    clean     holds nothing
    left      holds a block that was given up: it is overwritten by the next write, or wiped if that block is erased
    dirty     holds what must go: it is wiped, or overwritten by a write before that
    wiping    is being overwritten with zeros
    bad       could not be; it is tried again now and then
    parked    clean, in an extent that the disk had no room for; it is tried again now and then

Slots of extents that are not made yet are clean. Extents are begun one by one, up to the ceiling.
"""

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from engine.memory.eviction.base import BlockKey

_Name = TypeVar("_Name")


class Trace(NamedTuple):
    """A block of which a slot may still hold bytes."""

    key: BlockKey
    owner: str


Traces = frozenset[Trace] | None  # None: it may be anybody's
NOTHING: frozenset[Trace] = frozenset()


class Slots:
    """All slots of one life of a store that have no block."""

    def __init__(self, num_slots: int, per_extent: int, extents: Mapping[int, int], reserved: int) -> None:
        """Take what was found; all slots are taken until they are given.

        Args:
            num_slots: ceiling.
            per_extent: slots of a whole extent.
            extents: those that are there, and their slots.
            reserved: slots' worth of room that other files still take.
        """
        self.num_slots, self.per_extent, self.reserved = num_slots, per_extent, reserved
        self.extents = dict(extents)
        self.made = set(extents)  # those that are on the disk
        self.is_short = False  # the disk had no room for an extent when that was tried last
        self.wiping: dict[int, Traces] = {}
        self._clean: list[int] = []
        self._left: OrderedDict[int, Trace] = OrderedDict()
        self._left_of: defaultdict[BlockKey, set[int]] = defaultdict(set)
        self._left_by: defaultdict[str, set[int]] = defaultdict(set)
        self._dirty: OrderedDict[int, Traces] = OrderedDict()
        self._bad: dict[int, Traces] = {}
        self._parked: list[int] = []

    # ------------------------------------------------------------ taking

    def take(self) -> tuple[int, Traces] | None:
        """Return a slot to write to, and what lies there; None: every slot has a block, or must be waited for."""
        if self._dirty:
            return self._dirty.popitem(last=False)
        if self._left:
            slot = next(iter(self._left))
            return slot, frozenset({self._end_left(slot)})
        if self._clean or self._grow():
            return heapq.heappop(self._clean), NOTHING
        return None

    def extent_slots(self, slot: int) -> int:
        """Return how many slots the extent of a slot has."""
        return self.extents[slot // self.per_extent]

    def _grow(self) -> bool:
        """Begin another extent; False: there is no room for one."""
        num_slots = min(self.per_extent, self.num_slots - sum(self.extents.values()) - self.reserved)
        if num_slots <= 0 or self._parked:
            return False
        extent = next(number for number in range(len(self.extents) + 1) if number not in self.extents)
        self.extents[extent] = num_slots
        self._clean = list(range(extent * self.per_extent, extent * self.per_extent + num_slots))
        return True

    # ------------------------------------------------------------ giving back

    def give_clean(self, slot: int) -> None:
        """Note that a slot holds nothing."""
        heapq.heappush(self._clean, slot)

    def give_left(self, slot: int, trace: Trace) -> None:
        """Note that the block in a slot was given up."""
        self._left[slot] = trace
        self._left_of[trace.key].add(slot)
        self._left_by[trace.owner].add(slot)

    def give_dirty(self, slot: int, traces: Traces) -> None:
        """Note that what lies in a slot must go."""
        self._dirty[slot] = traces

    def park(self, slot: int) -> None:
        """Note that there was no room to make the extent of a slot."""
        extent = slot // self.per_extent
        self.is_short = True
        self._parked += [slot, *(one for one in self._clean if one // self.per_extent == extent)]
        self._clean = [one for one in self._clean if one // self.per_extent != extent]
        heapq.heapify(self._clean)

    def has_made(self, extent: int) -> None:
        """Note that an extent is on the disk."""
        if extent not in self.made:
            self.made.add(extent)
            self.is_short = False

    def try_again(self) -> None:
        """Give the bad and the parked slots another chance."""
        for slot in self._parked:
            self.give_clean(slot)
        self._parked.clear()
        self._dirty.update(self._bad)
        self._bad.clear()

    # ------------------------------------------------------------ wiping

    def spoil(self, keys: Iterable[BlockKey], owner: str | None) -> set[int]:
        """Have all slots wiped in which blocks of these keys, or any of an owner, may lie; return them."""
        keys = set(keys)
        left = {slot for key in keys for slot in self._left_of.get(key, ())}
        if owner is not None:
            left |= self._left_by.get(owner, set())
        for slot in left:
            self.give_dirty(slot, frozenset({self._end_left(slot)}))
        others = (self._dirty, self.wiping, self._bad)
        return left | {slot for some in others for slot, traces in some.items() if match(traces, keys, owner)}

    def next_wipe(self) -> int | None:
        """Return a slot that is to be wiped now; see `wiped`."""
        if not self._dirty:
            return None
        slot, traces = self._dirty.popitem(last=False)
        self.wiping[slot] = traces
        return slot

    def wiped(self, slot: int, *, ok: bool) -> None:
        """Note how a wipe ended."""
        traces = self.wiping.pop(slot)
        if ok:
            self.give_clean(slot)
        else:
            self._bad[slot] = traces

    # ------------------------------------------------------------ counting

    @property
    def is_dirty(self) -> bool:
        """Whether anything is to be wiped."""
        return bool(self._dirty or self.wiping)

    def all(self) -> list[int]:
        """Return the slots of all extents."""
        firsts = ((extent * self.per_extent, num_slots) for extent, num_slots in self.extents.items())
        return [slot for first, num_slots in firsts for slot in range(first, first + num_slots)]

    def unclean(self) -> list[int]:
        """Return the slots that may hold something of a block that is gone."""
        return [*self._left, *self._dirty, *self.wiping, *self._bad]

    def without_block(self) -> list[int]:
        """Return all slots here, each once if all is right."""
        return [*self._clean, *self._parked, *self.unclean()]

    def _end_left(self, slot: int) -> Trace:
        trace = self._left.pop(slot)
        _discard(self._left_of, trace.key, slot)
        _discard(self._left_by, trace.owner, slot)
        return trace


def match(traces: Traces, keys: set[BlockKey], owner: str | None) -> bool:
    """Whether one of these blocks, or one of this owner's, may be among the traces."""
    return traces is None or any(trace.key in keys or trace.owner == owner for trace in traces)


def _discard(table: "dict[_Name, set[int]]", name: "_Name", slot: int) -> None:
    slots = table[name]
    slots.remove(slot)
    if not slots:
        del table[name]
