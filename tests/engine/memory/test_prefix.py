"""The prefix tree: what it finds, and that its links are right after any history."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey, CachedNode
from engine.memory.keys import BlockHasher, KeyChain
from engine.memory.prefix import Place, PrefixTree
from engine.request import BlockId

HASHER = BlockHasher(model=b"", kv_format="", block_size=4)


class Planted:
    """A tree of 4-token blocks and an easy way to put sequences in."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.tree = PrefixTree(num_blocks, 4)
        self.free = [BlockId(block) for block in range(num_blocks - 1, -1, -1)]

    def chain(self, tokens: list[int], namespace: bytes = b"secret") -> KeyChain:
        """Return the keys of all full blocks."""
        chain = KeyChain(HASHER, namespace)
        chain.extend(tokens, len(tokens) // 4)
        return chain

    def put(self, tokens: list[int], namespace: bytes = b"secret") -> list[BlockId]:
        """Insert what is not there and return the blocks of all full blocks of `tokens`."""
        chain = self.chain(tokens, namespace)
        blocks = self.tree.find(chain.keys, len(chain.keys))
        for index in range(len(blocks), len(chain.keys)):
            root = chain.root(index)
            place: Place = blocks[index - 1] if root is None else root
            block = self.free.pop()
            self.tree.insert(chain.keys[index], block, place, token_ids=tokens[4 * index : 4 * index + 4], account=0)
            blocks.append(block)
        self.tree.audit()
        return blocks


def test_finds_the_longest_known_prefix() -> None:
    """Two sequences share the blocks of their common beginning and part where they differ."""
    planted = Planted()
    one = planted.put([*range(8), 10, 11, 12, 13])
    other = planted.put([*range(8), 20, 21, 22, 23])
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    keys = planted.chain([*range(8), 10, 11, 12, 13, 14, 15, 16, 17]).keys
    assert planted.tree.find(keys, 4) == one
    assert planted.tree.find(keys, 1) == one[:1]


def test_finds_part_of_a_block() -> None:
    """Below the last whole block, the child that agrees longest is found, and how far."""
    planted = Planted()
    parent = planted.put([0, 1, 2, 3])[0]
    near = planted.put([0, 1, 2, 3, 4, 5, 6, 7])[1]
    planted.put([0, 1, 2, 3, 4, 9, 9, 9])
    assert planted.tree.find_part(parent, [4, 5, 6, 8]) == (near, 3)
    assert planted.tree.find_part(parent, [5])[1] == 0


def test_finds_nothing_in_another_namespace() -> None:
    """Neither whole blocks nor a part: the other namespace has another root."""
    planted = Planted()
    planted.put([0, 1, 2, 3], b"one")
    chain = planted.chain([0, 1, 2, 3], b"other")
    assert planted.tree.find(chain.keys, 1) == []
    root = chain.root(0)
    assert root is not None
    assert planted.tree.find_part(root, [0, 1, 2])[1] == 0


def test_only_leaves_leave() -> None:
    """A block that is continued stays; when its last child is gone it may go too."""
    planted = Planted()
    first, second = planted.put(list(range(8)))
    with pytest.raises(InvariantError, match="children"):
        planted.tree.remove(first)
    assert planted.tree.remove(second)[1] == first
    assert planted.tree.remove(first)[1] is None
    assert len(planted.tree) == 0
    planted.tree.audit()


def test_a_node_tells_its_history() -> None:
    """Hits, last use, depth and tokens are what an eviction policy judges by."""
    planted = Planted()
    blocks = planted.put(list(range(8)))
    planted.tree.hit(blocks, 5.0)
    planted.tree.touch(blocks[1], 7.0)
    node = planted.tree.node(blocks[1], 2)
    assert (node.hits, node.last_use, node.depth, node.num_tokens, node.users, node.children) == (1, 7.0, 1, 8, 2, 0)
    assert planted.tree.node(blocks[0], 0).children == 1


def test_content_that_is_there_is_not_added_again() -> None:
    """A second block with the same content is turned away, and the first one is named."""
    planted = Planted()
    (block,) = planted.put([0, 1, 2, 3])
    chain = planted.chain([0, 1, 2, 3])
    root = chain.root(0)
    assert root is not None
    assert planted.tree.insert(chain.keys[0], BlockId(9), root, token_ids=[0, 1, 2, 3], account=0) == block
    assert BlockId(9) not in planted.tree
    planted.tree.audit()


def test_hits_are_counted_up_to_a_byte() -> None:
    """More hits than a byte holds are as many as it holds."""
    planted = Planted()
    blocks = planted.put([0, 1, 2, 3])
    for _ in range(300):
        planted.tree.hit(blocks, 1.0)
    assert planted.tree.hits(blocks[0]) == planted.tree.node(blocks[0], 0).hits == 255


NUM_BLOCKS = 12
PAIRS = BlockHasher(model=b"", kv_format="", block_size=2)
NAMESPACES = st.sampled_from((b"one", b"other"))
SEQUENCES = st.lists(st.integers(0, 1), max_size=7)
Path = tuple[bytes, tuple[int, ...]]  # of a node in the model: namespace and all tokens up to its end


def before(path: Path) -> Path:
    """Return the path of the block before; of the namespace itself for a first block."""
    return path[0], path[1][:-2]


def key_of(path: Path) -> BlockKey:
    """Return the key of a node, or of its namespace's root."""
    namespace, tokens = path
    return PAIRS.key(key_of(before(path)), tokens[-2:]) if tokens else PAIRS.root(namespace)


@dataclass
class Node:
    """A block of the model tree."""

    block: BlockId
    hits: int
    last_use: float


class Machine(RuleBasedStateMachine):
    """A tree whose index is crowded, beside a dict of paths."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree(NUM_BLOCKS, 2, num_slots=2)
        self.nodes: dict[Path, Node] = {}
        self.free = [BlockId(block) for block in range(NUM_BLOCKS)]
        self.now = 0.0

    @rule(namespace=NAMESPACES, tokens=SEQUENCES)
    def put(self, namespace: bytes, tokens: list[int]) -> None:
        """A sequence's blocks join, as far as there are free ones; those that are known are named."""
        for end in range(2, len(tokens) + 1, 2):
            path = (namespace, tuple(tokens[:end]))
            if not self.free:
                return
            place = self.nodes[before(path)].block if end > 2 else key_of(before(path))
            account = len(namespace)
            known = self.tree.insert(key_of(path), self.free[-1], place, token_ids=path[1][-2:], account=account)
            assert known == (self.nodes[path].block if path in self.nodes else None)
            if known is None:
                self.nodes[path] = node = Node(self.free.pop(), hits=end, last_use=self.now)
                self.tree.start_with(node.block, node.hits, node.last_use)

    @precondition(lambda self: self.nodes)
    @rule(choice=st.randoms(use_true_random=False))
    def remove(self, choice: random.Random) -> None:
        """A leaf goes and names its key and its parent; a block that is continued stays."""
        continued = {before(path) for path in self.nodes}
        for path, node in self.nodes.items():
            assert self.tree.is_leaf(node.block) == (path not in continued)
            if path in continued:
                with pytest.raises(InvariantError, match="children"):
                    self.tree.remove(node.block)
        path = choice.choice([path for path in self.nodes if path not in continued])
        node, parent = self.nodes.pop(path), self.nodes.get(before(path))
        assert self.tree.remove(node.block) == (key_of(path), parent.block if parent is not None else None)
        self.free.append(node.block)

    @rule(namespace=NAMESPACES, tokens=SEQUENCES)
    def match(self, namespace: bytes, tokens: list[int]) -> None:
        """Whole blocks and then a part are found as in the model; the blocks that were found are hit."""
        self.now += 1.0
        paths = [(namespace, tuple(tokens[:end])) for end in range(2, len(tokens) + 1, 2)]
        expected = list(itertools.takewhile(lambda path: path in self.nodes, paths))
        found = self.tree.find([key_of(path) for path in paths], len(paths))
        assert found == [self.nodes[path].block for path in expected]
        rest = tokens[2 * len(found) : 2 * len(found) + 1]
        if rest:
            last: Path = expected[-1] if expected else (namespace, ())
            part, count = self.tree.find_part(found[-1] if found else key_of(last), rest)
            agreeing = [
                node.block for path, node in self.nodes.items() if before(path) == last and path[1][-2] == rest[0]
            ]
            assert (count, part in agreeing) == ((1, True) if agreeing else (0, False))
        self.tree.hit(found, self.now)
        for path in expected:
            self.nodes[path].hits += 1
            self.nodes[path].last_use = self.now

    @invariant()
    def agrees(self) -> None:
        """The tree is sound, has the model's blocks in their places, and tells their history and content."""
        self.tree.audit()
        assert len(self.tree) == len(self.nodes)
        assert set(self.tree.blocks()) == {node.block for node in self.nodes.values()}
        for path, node in self.nodes.items():
            children = sum(before(other) == path for other in self.nodes)
            parent, end = self.nodes.get(before(path)), len(path[1])
            view = CachedNode(node.block, node.last_use, node.hits, children, 1, end // 2 - 1, end)
            assert self.tree.node(node.block, 1) == view
            assert self.tree.parent(node.block) == (parent.block if parent is not None else None)
            assert self.tree.account(node.block) == len(path[0])
            assert self.tree.content(node.block) == (key_of(path), key_of(before(path)), list(path[1][-2:]))
            assert self.tree.get(key_of(path)) == node.block


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda tree: tree._parent.__setitem__(1, 2),
        lambda tree: tree._first.__setitem__(1, -1),
        lambda tree: tree._previous.__setitem__(2, 0),
        lambda tree: tree._depth.__setitem__(2, 7),
        lambda tree: tree._next.__setitem__(2, 0),
        lambda tree: tree._index.remove(2),
        lambda tree: tree._spare_roots.append(0),
    ],
)
def test_audit_finds(break_it: Callable[[PrefixTree], object]) -> None:
    """Whatever link is changed, the audit says so."""
    planted = Planted(4)
    planted.free = [BlockId(block) for block in (3, 2, 1, 0)]
    planted.put(list(range(12)))
    break_it(planted.tree)
    with pytest.raises(InvariantError):
        planted.tree.audit()


def test_what_is_uprooted_is_found_and_keeps_its_place() -> None:
    """A parent may leave before what continues it, if that hangs from a root of its own; it may come back, too."""
    planted = Planted()
    tokens = list(range(16))
    blocks, chain = planted.put(tokens), planted.chain(tokens)
    planted.tree.uproot_children(blocks[1])
    planted.tree.audit()
    assert planted.tree.parent(blocks[2]) is None
    assert planted.tree.content(blocks[2])[:2] == (chain.keys[2], chain.keys[1])
    assert planted.tree.remove(blocks[1]) == (chain.keys[1], blocks[0])
    planted.tree.audit()
    assert planted.tree.find(chain.keys, 4) == blocks[:1]
    again = planted.put(tokens[:8])[1]
    assert planted.tree.find(chain.keys, 4) == [blocks[0], again, *blocks[2:]]
    assert planted.tree.node(blocks[3], 0).depth == 3
    for block in (blocks[3], blocks[2], again, blocks[0]):
        planted.tree.remove(block)
        planted.tree.audit()


def test_a_block_may_join_below_a_key_that_is_not_there() -> None:
    """Its depth is given; brothers find the same root."""
    planted = Planted()
    tokens = list(range(12))
    chain = planted.chain(tokens)
    for block, index in ((BlockId(7), 2), (BlockId(9), 2)):
        key = chain.keys[index] if block == 7 else BlockKey(bytes(32))
        planted.tree.insert(key, block, chain.keys[1], token_ids=tokens[8:12], account=0, depth=2)
        planted.tree.start_with(block, 0, 0.0)
    planted.tree.audit()
    assert planted.tree.node(BlockId(7), 0).num_tokens == 12
    assert planted.tree.parent(BlockId(9)) is None
