"""The prefix tree: sealed blocks by what they hold, so that a prompt finds what was computed before.

A node is a block id and one cell in each of a dozen arrays. Its children are the blocks of the same namespace that
continue it, in a linked list, newest first; the first block of a namespace hangs from a root. A node's parent is in the
tree as long as the node is, and never leaves before it.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey, CachedNode
from engine.request import BlockId

_NONE = -1
_MAX_SIBLINGS = 16  # looked at for a partial match: it saves less than one block, so it must cost little


class Place(NamedTuple):
    """Where a block hangs: below its parent, or below a root when it is the first of its namespace."""

    parent: BlockId | None
    root: BlockKey | None


class PrefixTree:
    """Blocks by key and by place. Knows nothing of accounts; a node's users are the pool's to count."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._blocks: dict[BlockKey, BlockId] = {}
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._roots: dict[BlockKey, BlockId] = {}  # first child of each root
        self._root_of: dict[BlockId, BlockKey] = {}
        zeros = bytes(4 * num_blocks)
        self._parent = array("i", zeros)
        self._first = array("i", zeros)  # child
        self._next = array("i", zeros)  # sibling
        self._previous = array("i", zeros)
        self._children = array("i", zeros)
        self._hits = array("i", zeros)
        self._depth = array("i", zeros)
        self._account = array("i", zeros)
        self._last_use = array("d", bytes(8 * num_blocks))
        self._tokens = np.zeros((num_blocks, block_size), dtype=np.int32)  # committed by the system as it is written
        self._token_bytes = self._tokens.data.cast("B")
        self._row = struct.Struct(f"{block_size}i")

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: BlockId) -> bool:
        return self._keys[block] is not None

    def get(self, key: BlockKey) -> BlockId | None:
        """Return the block with this content, or None."""
        return self._blocks.get(key)

    def find(self, keys: Sequence[BlockKey], limit: int) -> list[BlockId]:
        """Return the blocks of the longest run of leading keys that are all here, at most `limit`."""
        found: list[BlockId] = []
        get = self._blocks.get
        for key in islice(keys, limit):
            block = get(key)
            if block is None:
                break
            found.append(block)
        return found

    def find_part(self, place: Place, token_ids: Sequence[int]) -> tuple[BlockId, int]:
        """Return the block there whose first tokens agree longest with `token_ids`, and how many; (-1, 0) for none."""
        child = self._head(place)
        best, most = BlockId(_NONE), 0
        for _ in range(_MAX_SIBLINGS):
            if child == _NONE:
                break
            tokens = self._tokens[child]
            if tokens[0] == token_ids[0]:
                count = _agreement(tokens.tolist(), token_ids)
                if count > most:
                    best, most = BlockId(child), count
            child = self._next[child]
        return best, most

    def insert(self, key: BlockKey, block: BlockId, place: Place, *, token_ids: Sequence[int], account: int) -> None:
        """Add a full block. `account` is kept for the caller: all blocks of a namespace have the same one."""
        parent, root = place
        if key in self._blocks or self._keys[block] is not None or (parent is None) == (root is None):
            raise InvariantError(f"block {block} joins the tree twice, or without a place")
        if parent is not None and self._keys[parent] is None:
            raise InvariantError(f"block {block} joins below block {parent}, which is not in the tree")
        self._blocks[key] = block
        self._keys[block] = key
        self._row.pack_into(self._token_bytes, block * self._row.size, *token_ids)
        self._account[block] = account
        self._hits[block] = self._children[block] = 0
        self._first[block] = self._previous[block] = _NONE
        self._next[block] = sibling = self._head(place)
        if sibling != _NONE:
            self._previous[sibling] = block
        if parent is not None:
            self._parent[block] = parent
            self._first[parent] = block
            self._children[parent] += 1
            self._depth[block] = self._depth[parent] + 1
        else:
            assert root is not None, "one of both, checked above"
            self._parent[block] = _NONE
            self._roots[root] = block
            self._root_of[block] = root
            self._depth[block] = 0

    def remove(self, block: BlockId) -> tuple[BlockKey, BlockId | None]:
        """Take a leaf out; return its key and its parent, None for the first block of a namespace."""
        key = self._keys[block]
        if key is None or self._children[block]:
            raise InvariantError(f"block {block} leaves the tree with {self._children[block]} children, or twice")
        del self._blocks[key]
        self._keys[block] = None
        parent, following, previous = self._parent[block], self._next[block], self._previous[block]
        if following != _NONE:
            self._previous[following] = previous
        if previous != _NONE:
            self._next[previous] = following
        elif parent != _NONE:
            self._first[parent] = following
        elif following != _NONE:
            self._roots[self._root_of[block]] = BlockId(following)
        else:
            del self._roots[self._root_of[block]]
        if parent == _NONE:
            del self._root_of[block]
            return key, None
        self._children[parent] -= 1
        return key, BlockId(parent)

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        """Note that a request found these blocks."""
        for block in blocks:
            self._hits[block] += 1
            self._last_use[block] = now

    def start_with(self, block: BlockId, hits: int, now: float) -> None:
        """Set what an eviction policy remembers of a block that has just joined."""
        self._hits[block] = hits
        self._last_use[block] = now

    def touch(self, block: BlockId, now: float) -> None:
        """Note that a sequence used the block until now."""
        self._last_use[block] = now

    def is_leaf(self, block: BlockId) -> bool:
        """Say whether nothing in the block's namespace continues it."""
        return self._children[block] == 0

    def account(self, block: BlockId) -> int:
        """Return the index of the account that the block counts against."""
        return self._account[block]

    def node(self, block: BlockId, users: int) -> CachedNode:
        """Return what an eviction policy sees of the block."""
        depth = self._depth[block]
        return CachedNode(
            block=block,
            last_use=self._last_use[block],
            hits=self._hits[block],
            children=self._children[block],
            users=users,
            depth=depth,
            num_tokens=(depth + 1) * self.block_size,
        )

    def blocks(self) -> Iterator[BlockId]:
        """Iterate over all blocks."""
        return iter(self._blocks.values())

    def parent(self, block: BlockId) -> BlockId | None:
        """Return the block that this one continues in its namespace, or None."""
        parent = self._parent[block]
        return BlockId(parent) if parent != _NONE else None

    def audit(self) -> None:
        """Walk from all roots and compare with what is kept. Raises InvariantError."""
        if {block: key for block, key in enumerate(self._keys) if key is not None} != {
            block: key for key, block in self._blocks.items()
        }:
            raise InvariantError("the tree's keys and blocks do not belong together")
        seen: set[int] = set()
        lists = [(_NONE, 0, block) for block in self._roots.values()]
        while lists:
            parent, depth, child = lists.pop()
            count, previous = 0, _NONE
            while child != _NONE:
                wrong = self._parent[child] != parent or self._previous[child] != previous
                if wrong or child in seen or self._depth[child] != depth or self._keys[child] is None:
                    raise InvariantError(f"block {child} is in a wrong place of the tree")
                seen.add(child)
                lists.append((child, depth + 1, BlockId(self._first[child])))
                count, previous, child = count + 1, child, BlockId(self._next[child])
            if parent != _NONE and count != self._children[parent]:
                raise InvariantError(f"block {parent} counts {self._children[parent]} children and has {count}")
        if seen != set(self._blocks.values()):
            raise InvariantError("a block of the tree hangs from no root")

    def _head(self, place: Place) -> int:
        if place.parent is not None:
            return self._first[place.parent]
        return self._roots.get(place.root, _NONE) if place.root is not None else _NONE


def _agreement(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
