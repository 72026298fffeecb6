"""Names of full blocks by what they hold: SHA-256 over length-framed fields, chained from block to block.

    root  = H(namespace, model fingerprint, KV format, key of the block before in another namespace, or nothing)
    key 0 = H(root,   token ids of the block as little-endian int32)
    key i = H(key i-1, token ids of the block)

The fingerprint, of `engine.fingerprint`, has all that makes the same tokens give other keys and values; the format is
the dtype in which they are computed and how the pages hold them.

A namespace is a secret of the server's: without it no key can be guessed, and equal prompts of two namespaces have no
key in common. Frames are 4-byte little-endian lengths, so that no two field lists are one string of bytes.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from engine.memory.eviction.base import BlockKey

_sha256 = hashlib.sha256
_FRAME_KEY = struct.pack("<I", 32)


class SharedHead(NamedTuple):
    """The leading blocks of a prompt that belong to a share group."""

    namespace: bytes
    account: int  # index of the group's account
    num_blocks: int


class BlockHasher:
    """Makes the keys of one model's blocks in one KV format."""

    __slots__ = ("_fields", "_pack_one", "_row_bytes", "block_size")

    def __init__(self, *, model: bytes, kv_format: str, block_size: int) -> None:
        self.block_size = block_size
        self._fields = (model, kv_format.encode())
        self._row_bytes = 4 * block_size
        self._pack_one = struct.Struct(f"<I32sI{block_size}i").pack  # a key and a block's tokens, each in its frame

    def root(self, namespace: bytes, parent: bytes = b"") -> BlockKey:
        """Return what the first block of a namespace has in place of a parent's key."""
        fields = (namespace, *self._fields, parent)
        return BlockKey(_sha256(b"".join(struct.pack("<I", len(field)) + field for field in fields)).digest())

    def key(self, parent: BlockKey, token_ids: Sequence[int]) -> BlockKey:
        """Return the key of one full block."""
        fields = self._pack_one(32, parent, self._row_bytes, *token_ids)
        return _sha256(fields).digest()  # type: ignore[return-value]  # a call of BlockKey costs a tenth of all this

    def extend(self, keys: list[BlockKey], parent: BlockKey, token_ids: Sequence[int]) -> None:
        """Append the keys of consecutive full blocks; `token_ids` is a multiple of the block size."""
        framed = np.empty((len(token_ids) // self.block_size, 1 + self.block_size), dtype="<i4")
        framed[:, 0] = self._row_bytes
        # struct turns a list into int32 twice as fast as numpy does.
        packed = struct.pack(f"<{len(token_ids)}i", *token_ids)
        framed[:, 1:] = np.frombuffer(packed, dtype="<i4").reshape(-1, self.block_size)
        rows, width = framed.tobytes(), 4 + self._row_bytes
        made: list[bytes] = []
        key: bytes = parent
        for start in range(0, len(rows), width):
            key = _sha256(_FRAME_KEY + key + rows[start : start + width]).digest()
            made.append(key)
        keys += cast("list[BlockKey]", made)  # once: a call of BlockKey for each would cost a tenth of all this


class KeyChain:
    """The keys of one sequence's blocks, computed as far as they were needed and kept while it lives."""

    __slots__ = ("_hasher", "_namespace", "_roots", "head", "keys", "num_head")

    def __init__(self, hasher: BlockHasher, namespace: bytes, head: SharedHead | None = None) -> None:
        self._hasher = hasher
        self._namespace = namespace
        self.head = head
        self.num_head = head.num_blocks if head is not None else 0  # leading blocks that belong to a share group
        self.keys: list[BlockKey] = []
        first = hasher.root(head.namespace if head is not None else namespace)
        self._roots: dict[int, BlockKey] = {0: first}  # by index of the first block under each

    def fork(self, num_blocks: int) -> "KeyChain":
        """Return a chain of its own for a sequence that shares the first `num_blocks` blocks."""
        chain = KeyChain(self._hasher, self._namespace, self.head)
        chain.keys = self.keys[:num_blocks]
        return chain

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Have the keys of the first `num_blocks` blocks; `token_ids` is the whole sequence."""
        keys, num_head, size = self.keys, self.num_head, self._hasher.block_size
        start = len(keys)
        if start == num_blocks - 1 and start not in (0, num_head):  # a block that a decode has filled: the common case
            keys.append(self._hasher.key(keys[-1], token_ids[start * size : num_blocks * size]))
            return
        while (start := len(keys)) < num_blocks:
            end = num_head if start < num_head < num_blocks else num_blocks
            parent = keys[start - 1] if start not in (0, num_head) else self.root(start)
            assert parent is not None, "the first block and the one after the head hang from a root"
            self._hasher.extend(keys, parent, token_ids[start * size : end * size])

    def root(self, index: int) -> BlockKey | None:
        """Return the root that block `index` hangs from, or None when it continues the block before it.

        The keys of the blocks before it must be there.
        """
        if index == self.num_head and index not in self._roots:
            self._roots[index] = self._hasher.root(self._namespace, self.keys[index - 1])
        return self._roots.get(index)
