"""The pool of block ids: free → open (one writer) → sealed (full) → free.

    free + open + sealed == num_blocks, after every call

Arrays only: no object per block, so that a pool of a million blocks costs one list of ints and one byte each.
"""

from collections.abc import Sequence

from engine.errors import InvariantError
from engine.request import BlockId

FREE, OPEN, SEALED = 0, 1, 2


class BlockPool:
    """Hands out block ids and keeps each one's state; knows nothing of sequences or tenants."""

    __slots__ = ("_free", "_states", "num_blocks", "num_open", "num_sealed")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_open = 0
        self.num_sealed = 0
        self._free: list[BlockId] = [BlockId(block) for block in range(num_blocks - 1, -1, -1)]  # a stack
        self._states = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[BlockId] | None:
        """Take `count` free blocks, now open; None, and nothing taken, when the pool has fewer."""
        free = self._free
        if count > len(free):
            return None
        if count == 1:  # a decode that crosses a block boundary: the common case
            blocks = [free.pop()]
        else:
            blocks = free[len(free) - count :]
            del free[len(free) - count :]
        for block in blocks:
            self._states[block] = OPEN
        self.num_open += count
        return blocks

    def seal(self, block: BlockId) -> None:
        """Mark an open block as full: nobody writes to it any more."""
        if self._states[block] != OPEN:
            raise InvariantError(f"block {block} is sealed in state {self._states[block]}, not open")
        self._states[block] = SEALED
        self.num_open -= 1
        self.num_sealed += 1

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Give blocks back, open or sealed."""
        states = self._states
        for block in blocks:
            state = states[block]
            if state == OPEN:
                self.num_open -= 1
            elif state == SEALED:
                self.num_sealed -= 1
            else:
                raise InvariantError(f"block {block} is freed twice")
            states[block] = FREE
        self._free.extend(blocks)

    def state(self, block: BlockId) -> int:
        """Return FREE, OPEN or SEALED."""
        return self._states[block]

    def audit(self) -> None:
        """Recount every block and compare. Raises InvariantError."""
        states = self._states
        found = (states.count(FREE), states.count(OPEN), states.count(SEALED))
        kept = (len(self._free), self.num_open, self.num_sealed)
        if found != kept or sum(found) != self.num_blocks:
            raise InvariantError(f"pool of {self.num_blocks}: counted free, open, sealed {found}, kept {kept}")
        if len(set(self._free)) != len(self._free) or any(states[block] != FREE for block in self._free):
            raise InvariantError("the free list holds a block twice, or one that is not free")
