"""The pool of block ids and who uses them.

    free → open (being filled) → sealed (full) → cached (no user, still findable) → free
    free + open + sealed + cached + leaving == num_blocks, after every call

A block that is given up while it is copied elsewhere is leaving: free when the copy is done.

Arrays only: no object per block, so that a million blocks cost nine bytes each and are there in milliseconds.
"""

from array import array
from collections.abc import Container, Sequence

from engine.errors import InvariantError
from engine.request import BlockId

FREE, OPEN, SEALED, CACHED, LEAVING = 0, 1, 2, 3, 4


class BlockPool:
    """Hands out block ids, keeps each one's state and number of users; knows nothing of sequences or tenants."""

    __slots__ = ("_free", "_states", "_users", "num_blocks", "num_cached", "num_leaving", "num_open", "num_sealed")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_open = 0
        self.num_sealed = 0
        self.num_cached = 0
        self.num_leaving = 0
        self._free = array("i", range(num_blocks - 1, -1, -1))  # a stack
        self._states = bytearray(num_blocks)
        self._users = array("i", bytes(4 * num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    def allocate(self, count: int) -> list[BlockId] | None:
        """Take `count` free blocks, now open with one user; None, and nothing taken, when the pool has fewer."""
        free, states, users = self._free, self._states, self._users
        if count > len(free):
            return None
        start = len(free) - count
        blocks: list[BlockId] = free[start:].tolist()  # type: ignore[assignment]  # ints are block ids here
        del free[start:]
        for block in blocks:
            states[block] = OPEN
            users[block] = 1
        self.num_open += count
        return blocks

    def allocate_one(self) -> BlockId:
        """Take one free block, now open with one user. There must be one: a decode that crosses a boundary asks."""
        block = BlockId(self._free.pop())
        self._states[block] = OPEN
        self._users[block] = 1
        self.num_open += 1
        return block

    def seal(self, block: BlockId) -> None:
        """Mark an open block as full: nobody writes to it any more."""
        if self._states[block] != OPEN or self._users[block] != 1:
            raise InvariantError(
                f"block {block} is sealed in state {self._states[block]}, not open, or with {self._users[block]} users"
            )
        self._states[block] = SEALED
        self.num_open -= 1
        self.num_sealed += 1

    def share(self, block: BlockId) -> None:
        """Add a user; a cached block has its first one again."""
        state = self._states[block]
        if state == CACHED:
            self._states[block] = SEALED
            self.num_cached -= 1
            self.num_sealed += 1
        elif state == FREE:
            raise InvariantError(f"block {block} is shared, but it is free")
        self._users[block] += 1

    def unshare(self, block: BlockId) -> None:
        """Take a user off a block that has others."""
        if self._users[block] < 2:
            raise InvariantError(f"block {block} has no other user")
        self._users[block] -= 1

    def cache(self, block: BlockId) -> None:
        """Let the last user of a sealed block go; what it holds stays findable."""
        if self._states[block] != SEALED or self._users[block] != 1:
            raise InvariantError(
                f"block {block} is cached in state {self._states[block]} with {self._users[block]} users"
            )
        self._states[block] = CACHED
        self._users[block] = 0
        self.num_sealed -= 1
        self.num_cached += 1

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Give blocks back that are cached, or whose only user is the caller."""
        states, users = self._states, self._users
        for block in blocks:
            state = states[block]
            if state == OPEN:
                self.num_open -= 1
            elif state == SEALED:
                self.num_sealed -= 1
            elif state == CACHED:
                self.num_cached -= 1
            else:
                raise InvariantError(f"block {block} is freed twice")
            if users[block] > 1:
                raise InvariantError(f"block {block} is freed with {users[block]} users")
            states[block] = FREE
            users[block] = 0
        self._free.extend(blocks)

    def free_cached(self, block: BlockId) -> None:
        """Give a cached block back."""
        if self._states[block] != CACHED:
            raise InvariantError(f"block {block} is given up in state {self._states[block]}, not cached")
        self._states[block] = FREE
        self.num_cached -= 1
        self._free.append(block)

    def detain(self, block: BlockId) -> None:
        """Give a cached block up that is being copied: nobody finds it, and nobody has its room yet."""
        if self._states[block] != CACHED:
            raise InvariantError(f"block {block} is given up in state {self._states[block]}, not cached")
        self._states[block] = LEAVING
        self.num_cached -= 1
        self.num_leaving += 1

    def free_detained(self, block: BlockId) -> bool:
        """Give a block back that has been copied, if it was given up meanwhile; say whether it was."""
        if self._states[block] != LEAVING:
            return False
        self._states[block] = FREE
        self.num_leaving -= 1
        self._free.append(block)
        return True

    def take_free(self, count: int, besides: Container[BlockId]) -> list[BlockId]:
        """Take up to `count` free blocks, now open with one user, none of those `besides`."""
        blocks = self.allocate(min(count, len(self._free))) or []
        refused = [block for block in blocks if block in besides]
        if refused:
            self.free(refused)
        return [block for block in blocks if block not in besides]

    def free_blocks(self) -> list[BlockId]:
        """Return all blocks that are free."""
        return [BlockId(block) for block in self._free]

    def state(self, block: BlockId) -> int:
        """Return FREE, OPEN, SEALED, CACHED or LEAVING."""
        return self._states[block]

    def users(self, block: BlockId) -> int:
        """Return how many hold the block."""
        return self._users[block]

    def audit(self) -> None:
        """Recount every block and compare. Raises InvariantError."""
        states = self._states
        found = tuple(map(states.count, (FREE, OPEN, SEALED, CACHED, LEAVING)))
        kept = (len(self._free), self.num_open, self.num_sealed, self.num_cached, self.num_leaving)
        if found != kept or sum(found) != self.num_blocks:
            raise InvariantError(f"pool of {self.num_blocks}: counted {found} by state, kept {kept}")
        if len(set(self._free)) != len(self._free) or any(states[block] != FREE for block in self._free):
            raise InvariantError("the free list holds a block twice, or one that is not free")
        for block, (state, users) in enumerate(zip(states, self._users, strict=True)):
            if (users > 0) != (state in (OPEN, SEALED)):
                raise InvariantError(f"block {block} is in state {state} with {users} users")
