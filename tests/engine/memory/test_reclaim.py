"""Candidates under any order, however its values change: each block once, only what may go, the lowest first."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.pool import BlockPool
from engine.memory.prefix import PrefixTree
from engine.memory.reclaim import Candidates
from engine.request import BlockId

NUM_BLOCKS = 12
ROOT = BlockKey(bytes(32))


class Fickle:
    """An order whose values are set from outside."""

    def __init__(self) -> None:
        self.generation = 0
        self.values = dict.fromkeys(range(NUM_BLOCKS), 0.0)

    def key(self, key: BlockKey, node: CachedNode) -> float:
        """Return a value as it is now."""
        return self.values[node.block]

    def looked_up(self, *_: object) -> None:
        """Take no notice."""

    def stored(self, *_: object) -> int:
        """Remember nothing."""
        return 0

    def evicted(self, *_: object) -> None:
        """Take no notice."""


class Shelf:
    """A pool whose blocks are all cached, each below another one or a root."""

    def __init__(self, parents: list[int]) -> None:
        self.pool, self.tree, self.order = BlockPool(NUM_BLOCKS), PrefixTree(NUM_BLOCKS, 4), Fickle()
        self.candidates = Candidates(0, self.pool, self.tree, self.order)
        self.parent: dict[BlockId, BlockId | None] = {}
        blocks = self.pool.allocate(NUM_BLOCKS) or []
        for number, block in enumerate(blocks):
            above = blocks[parents[number] % number] if number and parents[number] >= 0 else None
            self.parent[block] = above
            key = BlockKey(number.to_bytes(4, "little") * 8)
            self.tree.insert(key, block, ROOT if above is None else above, token_ids=[number] * 4, account=0)
            self.tree.start_with(block, 0, 0.0)
            self.pool.seal(block)
        for block in reversed(blocks):
            self.pool.cache(block)
            self.offer(block)

    def offer(self, block: BlockId) -> None:
        """Offer a block as the memory does when it becomes a cached leaf."""
        self.candidates.offer(block, self.pool.num_cached)

    def leaves(self) -> set[BlockId]:
        """Return what may go."""
        return {block for block in self.parent if block not in self.parent.values()}

    def evict(self, block: BlockId) -> None:
        """Take a block out as the memory does."""
        _, parent = self.tree.remove(block)
        self.pool.free_cached(block)
        del self.parent[block]
        if parent is not None:
            self.offer(parent)


@settings(max_examples=200)
@given(
    parents=st.lists(st.integers(-1, NUM_BLOCKS), min_size=NUM_BLOCKS, max_size=NUM_BLOCKS),
    changes=st.lists(st.dictionaries(st.integers(0, NUM_BLOCKS - 1), st.integers(-5, 5)), max_size=NUM_BLOCKS),
    resorts=st.sets(st.integers(0, NUM_BLOCKS)),
)
def test_every_block_goes_once_whatever_its_value_does(
    parents: list[int], changes: list[dict[int, int]], resorts: set[int]
) -> None:
    """Values rise and fall unseen: `take` never gives a block that may not go, none twice, and none is lost."""
    shelf = Shelf(parents)
    for number in range(NUM_BLOCKS):
        for block, value in changes[number].items() if number < len(changes) else ():
            shelf.order.values[block] = float(value)
        shelf.order.generation += number in resorts
        leaves = shelf.leaves()
        assert shelf.candidates.blocks() == leaves
        taken = shelf.candidates.take()
        assert taken is not None
        assert taken in leaves
        if number in resorts:
            assert shelf.order.values[taken] == min(shelf.order.values[block] for block in leaves)
        shelf.evict(taken)
    assert shelf.candidates.take() is None


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=NUM_BLOCKS, max_size=NUM_BLOCKS))
def test_the_lowest_value_goes_first(values: list[float]) -> None:
    """Values that stay as they are give a sorted order."""
    shelf = Shelf([-1] * NUM_BLOCKS)
    shelf.order.values = dict(enumerate(values))
    shelf.order.generation += 1
    taken = []
    for _ in range(NUM_BLOCKS):
        block = shelf.candidates.take()
        assert block is not None
        taken.append(values[block])
        shelf.evict(block)
    assert taken == sorted(values)


def test_a_value_that_rose_is_found_at_its_new_place() -> None:
    """A block that was asked for where it lay goes after all that are now worth less."""
    shelf = Shelf([-1] * NUM_BLOCKS)
    shelf.order.values[0] = 5.0
    taken = []
    while (block := shelf.candidates.take()) is not None:
        taken.append(block)
        shelf.evict(block)
    assert taken[-1] == 0
    assert len(taken) == NUM_BLOCKS
