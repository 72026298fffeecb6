"""Blocks by key: a hash table in flat arrays, 40 bytes a block with the keys in it.

    slot of a key    its first four bytes, masked: a key is a SHA-256 already, any bits of it are spread evenly
    what it holds    the first block of a chain; each block names the next one

Chains, not open addressing: a block that leaves is unhooked, so that no tombstones pile up and nothing moves however
long blocks come and go, and a table as full as it can be takes 1.5 comparisons to find a key. Not a dict: that would
be 180 bytes a block, most of them objects for keys and ids.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey
from engine.request import BlockId

_NONE = -1
_ABSENT = -2  # in place of the next block: not in the index
_KEY_BYTES = 32
_first_word = struct.Struct("<I").unpack_from


class BlockIndex:
    """Finds the block that has a key, and the key of a block. Whole keys are compared, whatever their slots."""

    __slots__ = ("_heads", "_keys", "_mask", "_next", "_num")

    def __init__(self, num_blocks: int, *, num_slots: int | None = None) -> None:
        """Start empty. `num_slots` is a power of two; without it there is about one slot for each block."""
        slots = num_slots or 1 << (num_blocks - 1).bit_length()
        self._mask = slots - 1
        self._num = 0
        self._heads = array("i", [_NONE]) * slots
        self._next = array("i", [_ABSENT]) * num_blocks
        self._keys = bytearray(_KEY_BYTES * num_blocks)

    def __len__(self) -> int:
        return self._num

    def __contains__(self, block: BlockId) -> bool:
        return self._next[block] != _ABSENT

    def get(self, key: BlockKey) -> BlockId | None:
        """Return the block with this key, or None."""
        block = self._heads[_first_word(key)[0] & self._mask]
        while block != _NONE:
            if self._keys.startswith(key, block * _KEY_BYTES):  # compares in place, makes nothing
                return BlockId(block)
            block = self._next[block]
        return None

    def find(self, keys: Sequence[BlockKey], limit: int) -> list[BlockId]:
        """Return the blocks of the longest run of leading keys that are all here, at most `limit`."""
        heads, following, mask, is_at = self._heads, self._next, self._mask, self._keys.startswith
        found: list[BlockId] = []
        for key in islice(keys, limit):  # `get`, without the call
            block = heads[_first_word(key)[0] & mask]
            while block != _NONE and not is_at(key, block * _KEY_BYTES):
                block = following[block]
            if block == _NONE:
                break
            found.append(block)
        return found

    def add(self, key: BlockKey, block: BlockId) -> BlockId | None:
        """Add a block under its key; where another one has that key, change nothing and return it."""
        slot, is_at = _first_word(key)[0] & self._mask, self._keys.startswith
        first = other = self._heads[slot]
        while other != _NONE:
            if is_at(key, other * _KEY_BYTES):
                return BlockId(other)
            other = self._next[other]
        if self._next[block] != _ABSENT or len(key) != _KEY_BYTES:
            raise InvariantError(f"block {block} is indexed twice, or its key is not of {_KEY_BYTES} bytes")
        start = block * _KEY_BYTES
        self._keys[start : start + _KEY_BYTES] = key
        self._next[block] = first
        self._heads[slot] = block
        self._num += 1
        return None

    def remove(self, block: BlockId) -> BlockKey:
        """Take a block out and return its key."""
        key = self.key(block)
        slot, following = _first_word(key)[0] & self._mask, self._next[block]
        other = self._heads[slot]
        if other == block:
            self._heads[slot] = following
        else:
            while self._next[other] != block:
                other = self._next[other]
            self._next[other] = following
        self._next[block] = _ABSENT
        self._num -= 1
        return key

    def key(self, block: BlockId) -> BlockKey:
        """Return a block's key."""
        if self._next[block] == _ABSENT:
            raise InvariantError(f"block {block} is not in the index")
        start = block * _KEY_BYTES
        return BlockKey(bytes(self._keys[start : start + _KEY_BYTES]))

    def blocks(self) -> Iterator[BlockId]:
        """Iterate over all blocks."""
        return (BlockId(block) for block, following in enumerate(self._next) if following != _ABSENT)

    def audit(self) -> None:
        """Walk all chains: each block once, in the slot of its key, no key twice. Raises InvariantError."""
        seen: set[int] = set()
        keys: set[BlockKey] = set()
        for slot, head in enumerate(self._heads):
            block = head
            while block != _NONE:
                if block in seen or self._next[block] == _ABSENT:
                    raise InvariantError(f"block {block} is in two chains of the index, or should be in none")
                key = self.key(BlockId(block))
                if _first_word(key)[0] & self._mask != slot or key in keys:
                    raise InvariantError(f"block {block} is in the wrong chain of the index, or has another's key")
                seen.add(block)
                keys.add(key)
                block = self._next[block]
        if len(seen) != self._num or seen != set(self.blocks()):
            raise InvariantError(f"the index counts {self._num} blocks, and {len(seen)} can be found")
