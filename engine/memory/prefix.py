"""The prefix tree: sealed blocks by what they hold, so that a prompt finds what was computed before.

A node is a block id and one cell in each of eight arrays; keys and token ids are kept beside (index.py, tokens.py). Its
children are the blocks of the same namespace that continue it, in a linked list, newest first; the first blocks of a
namespace hang from a root. A node's parent is in the tree as long as the node is, and never leaves before it, but for
one case: a running sequence goes on without it (streaming.py). Then what continues it hangs from a root with its key.
"""

from array import array
from collections.abc import Iterator, MutableSequence, Sequence

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.index import BlockIndex
from engine.memory.tokens import BlockTokens
from engine.request import BlockId

_new = tuple.__new__
_NONE = -1
_MAX_SIBLINGS = 16  # looked at for a partial match: it saves less than one block, so it must cost little
_MOST_HITS = 255  # counted: one byte a block


Place = BlockId | BlockKey  # where a block hangs: the block before it, or a root when it is the first of its namespace


class PrefixTree:
    """Blocks by key and by place. Knows nothing of accounts; a node's users are the pool's to count."""

    def __init__(self, num_blocks: int, block_size: int, *, num_slots: int | None = None) -> None:
        """Start empty. `num_slots` is the index's; tests make it small."""
        self.block_size = block_size
        self._index = BlockIndex(num_blocks, num_slots=num_slots)
        self._tokens = BlockTokens(num_blocks, block_size)
        self._roots: dict[BlockKey, int] = {}  # number of each root that has a child
        self._root_keys: list[BlockKey] = []  # by number
        self._root_first: list[int] = []  # child, by number
        self._root_depth: list[int] = []  # of these children, by number
        self._spare_roots: list[int] = []
        zeros = bytes(4 * num_blocks)
        self._parent = array("i", zeros)  # a block; of a first block ~number of its root, which is negative
        self._first = array("i", zeros)  # child
        self._next = array("i", zeros)  # sibling
        self._previous = array("i", zeros)
        self._depth = array("i", zeros)
        self._account = array("i", zeros)
        self._hits = bytearray(num_blocks)
        self._last_use = array("d", bytes(8 * num_blocks))

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._index

    def get(self, key: BlockKey) -> BlockId | None:
        """Return the block with this content, or None."""
        return self._index.get(key)

    def find(self, keys: Sequence[BlockKey], limit: int) -> list[BlockId]:
        """Return the blocks of the longest run of leading keys that are all here, at most `limit`."""
        return self._index.find(keys, limit)

    def find_part(self, place: Place, token_ids: Sequence[int]) -> tuple[BlockId, int]:
        """Return the block there whose first tokens agree longest with `token_ids`, and how many; (-1, 0) for none."""
        child = self._head(place)
        children: list[int] = []
        while child != _NONE and len(children) < _MAX_SIBLINGS:
            children.append(child)
            child = self._next[child]
        best, count = self._tokens.best(children, token_ids)
        return BlockId(best), count

    def insert(
        self, key: BlockKey, block: BlockId, place: Place, *, token_ids: Sequence[int], account: int, depth: int = 0
    ) -> BlockId | None:
        """Add a full block; where another one has its content already, change nothing and return that one.

        `start_with` must follow. `account` is kept for the caller: all blocks of a namespace have the same one.
        `depth` is that of a block below a root: not 0 if the root is the key of a block that is not here.
        """
        if not isinstance(place, bytes) and place not in self._index:
            raise InvariantError(f"block {block} joins the tree below {place}, which is not in it")
        self._tokens.put(block, token_ids)
        known = self._index.add(key, block)
        if known is not None:
            return known
        heads: MutableSequence[int] = self._first
        if isinstance(place, bytes):
            at = self._root_number(place, depth)
            heads, parent = self._root_first, ~at
        else:
            at = parent = place
            depth = self._depth[place] + 1
        self._next[block] = sibling = heads[at]
        if sibling != _NONE:
            self._previous[sibling] = block
        heads[at] = block
        self._first[block] = self._previous[block] = _NONE
        self._parent[block], self._depth[block] = parent, depth
        self._account[block] = account
        return None

    def uproot(self, block: BlockId) -> None:
        """Hang a block, with all that continues it, from a root with the key of its parent, which may leave then."""
        parent = self._parent[block]
        if parent < 0:
            return
        self._unlink(block)
        number = self._root_number(self._index.key(BlockId(parent)), self._depth[block])
        self._next[block] = sibling = self._root_first[number]
        if sibling != _NONE:
            self._previous[sibling] = block
        self._root_first[number], self._previous[block], self._parent[block] = block, _NONE, ~number

    def uproot_children(self, block: BlockId) -> None:
        """Uproot all that continues a block."""
        while self._first[block] != _NONE:
            self.uproot(BlockId(self._first[block]))

    def remove(self, block: BlockId) -> tuple[BlockKey, BlockId | None]:
        """Take a leaf out; return its key and its parent, None for the first block of a namespace."""
        if self._first[block] != _NONE and block in self._index:
            raise InvariantError(f"block {block} leaves the tree before its children")
        key = self._index.remove(block)
        parent = self._parent[block]
        self._unlink(block)
        return key, BlockId(parent) if parent >= 0 else None

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        """Note that a request found these blocks."""
        for block in blocks:
            if self._hits[block] < _MOST_HITS:
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
        return self._first[block] == _NONE

    def account(self, block: BlockId) -> int:
        """Return the index of the account that the block counts against."""
        return self._account[block]

    def hits(self, block: BlockId) -> int:
        """Return how often requests found the block, 255 at most, and what `start_with` set."""
        return self._hits[block]

    def node(self, block: BlockId, users: int) -> CachedNode:
        """Return what an eviction policy sees of the block."""
        depth = self._depth[block]
        children, child = 0, self._first[block]
        while child != _NONE:  # a candidate has none
            children, child = children + 1, self._next[child]
        use, num_tokens = self._last_use[block], (depth + 1) * self.block_size
        # In the order of CachedNode's fields: a call of CachedNode takes twice as long.
        return _new(CachedNode, (block, use, self._hits[block], children, users, depth, num_tokens))

    def blocks(self) -> Iterator[BlockId]:
        """Iterate over all blocks."""
        return self._index.blocks()

    def children(self, block: BlockId) -> list[BlockId]:
        """Return the blocks that continue this one."""
        found: list[BlockId] = []
        child = self._first[block]
        while child != _NONE:
            found.append(BlockId(child))
            child = self._next[child]
        return found

    def key(self, block: BlockId) -> BlockKey:
        """Return the key of what a block holds."""
        return self._index.key(block)

    def parent(self, block: BlockId) -> BlockId | None:
        """Return the block that this one continues in its namespace, or None."""
        parent = self._parent[block]
        return BlockId(parent) if parent >= 0 else None

    def before(self, block: BlockId) -> BlockKey:
        """Return the key of what a block continues; its root's, for a first block."""
        parent = self._parent[block]
        return self._index.key(BlockId(parent)) if parent >= 0 else self._root_keys[~parent]

    def packed_tokens(self, block: BlockId) -> bytes:
        """Return a block's token ids, for `engine.memory.tokens.unpack`."""
        return self._tokens.packed(block)

    def content(self, block: BlockId) -> tuple[BlockKey, BlockKey, list[int]]:
        """Return a block's key, the key of what it continues (its root's, for a first block), and its token ids."""
        return self._index.key(block), self.before(block), self._tokens.get(block)

    def audit(self) -> None:
        """Check the index, then walk from all roots and compare with what is kept. Raises InvariantError."""
        self._index.audit()
        numbered = {key: number for number, key in enumerate(self._root_keys) if number not in self._spare_roots}
        if numbered != self._roots:
            raise InvariantError("a root of the tree is lost or there twice")
        seen: set[int] = set()
        lists = [(~number, self._root_depth[number], self._root_first[number]) for number in self._roots.values()]
        while lists:
            parent, depth, child = lists.pop()
            previous = _NONE
            if parent < 0 and child == _NONE:
                raise InvariantError(f"root {~parent} of the tree has no child")
            while child != _NONE:
                wrong = self._parent[child] != parent or self._previous[child] != previous
                if wrong or child in seen or self._depth[child] != depth or BlockId(child) not in self._index:
                    raise InvariantError(f"block {child} is in a wrong place of the tree")
                seen.add(child)
                lists.append((child, depth + 1, self._first[child]))
                previous, child = child, self._next[child]
        if seen != set(self._index.blocks()):
            raise InvariantError("a block of the tree hangs from no root")

    def _head(self, place: Place) -> int:
        if isinstance(place, bytes):
            number = self._roots.get(place)
            return _NONE if number is None else self._root_first[number]
        return self._first[place]

    def _unlink(self, block: BlockId) -> None:
        """Take a block out of its parent's list."""
        parent, following, previous = self._parent[block], self._next[block], self._previous[block]
        if following != _NONE:
            self._previous[following] = previous
        if previous != _NONE:
            self._next[previous] = following
        elif parent >= 0:
            self._first[parent] = following
        else:
            self._root_first[~parent] = following
            if following == _NONE:
                self._drop_root(~parent)

    def _root_number(self, root: BlockKey, depth: int) -> int:
        """Return a root's number; a new root, of children at this depth, gets one that is not in use."""
        number = self._roots.get(root)
        if number is None:
            if self._spare_roots:
                number = self._spare_roots.pop()
                self._root_keys[number], self._root_depth[number] = root, depth
            else:
                number = len(self._root_keys)
                self._root_keys.append(root)
                self._root_first.append(_NONE)
                self._root_depth.append(depth)
            self._roots[root] = number
        return number

    def _drop_root(self, number: int) -> None:
        del self._roots[self._root_keys[number]]
        self._spare_roots.append(number)
