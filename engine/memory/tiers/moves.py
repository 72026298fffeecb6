"""What the next plan copies between device and host memory, until it takes it: all stores come before all loads.

What is stored in a plan can be loaded in the same one, and what is not loaded before the plan is taken need not be.
"""

from collections import Counter
from collections.abc import Callable, Container
from typing import NamedTuple

from engine.errors import InvariantError
from engine.memory.accounts import AccountOwner
from engine.request import BlockId, SlabId
from engine.step import SlabMove

URGENT_BLOCKS = 32  # that nobody claims and a plan stores: what is worth keeping has mostly been copied ahead


class Moves(NamedTuple):
    """What a plan copies, and for whom blocks are moved out: (by whose need, of whose memory) → blocks."""

    stores: tuple[SlabMove, ...] = ()
    loads: tuple[SlabMove, ...] = ()
    needs: Counter[tuple[AccountOwner, AccountOwner]] | None = None


class Store(NamedTuple):
    """A block that is to be stored."""

    block: BlockId
    by: AccountOwner  # whose need it was
    of: AccountOwner


_NO_MOVES = Moves()


class NextMoves:
    """Copies that wait for the next plan. A slab is held from `take` on if it is stored to, from `load` on if not."""

    __slots__ = ("_loads", "_num_urgent", "_stores")

    def __init__(self) -> None:
        self._stores: dict[SlabId, Store] = {}
        self._num_urgent = 0  # of them, those that nobody claims
        self._loads: dict[BlockId, SlabId] = {}

    @property
    def is_storing_enough(self) -> bool:
        """Whether the plan stores as much as it should for nobody."""
        return self._num_urgent >= URGENT_BLOCKS

    @property
    def stored(self) -> Container[SlabId]:
        """The slabs that are stored to."""
        return self._stores.keys()

    def stored_blocks(self) -> set[BlockId]:
        """Return the blocks, free already, whose content is stored."""
        return {store.block for store in self._stores.values()}

    def is_loading(self, block: BlockId) -> bool:
        """Say whether what a block holds will be there only with the next plan."""
        return block in self._loads

    def store(self, slab: SlabId, store: Store, *, is_urgent: bool = False) -> None:
        """Store a block to a slab. `is_urgent`: nobody claims it."""
        self._num_urgent += is_urgent
        self._stores[slab] = store

    def unstore(self, slab: SlabId) -> None:
        """Do not store to a slab, if that was planned."""
        self._stores.pop(slab, None)

    def load(self, slab: SlabId, block: BlockId) -> None:
        """Load a slab, which somebody holds for it, to a block."""
        self._loads[block] = slab

    def unload(self, block: BlockId) -> SlabId | None:
        """Do not load a block; return the slab that it was to be loaded from, or None."""
        return self._loads.pop(block, None)

    def take(self) -> Moves:
        """Return all of it, once."""
        if not (self._stores or self._loads):
            return _NO_MOVES
        stores, loads = self._stores, self._loads
        self._stores, self._loads, self._num_urgent = {}, {}, 0
        return Moves(
            tuple(SlabMove(store.block, slab) for slab, store in stores.items()),
            tuple(SlabMove(block, slab) for block, slab in loads.items()),
            Counter((store.by, store.of) for store in stores.values()),
        )

    def audit(self, planned: Container[SlabId], is_held: Callable[[SlabId], bool]) -> None:
        """Check that each slab is there for its copy: `planned` ones wait for theirs. Raises InvariantError."""
        if any(not is_held(slab) for slab in self._loads.values()):
            raise InvariantError("a plan loads from a slab that nobody holds for it")
        if len(set(self._loads.values())) != len(self._loads):
            raise InvariantError("a slab is loaded twice in one plan")
        if any(not is_held(slab) and slab not in planned for slab in self._stores):
            raise InvariantError("a plan stores to a slab that is not there for it")
