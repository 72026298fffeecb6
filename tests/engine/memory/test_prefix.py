"""The prefix tree: what it finds, and that its links are right after any history."""

import random

import pytest

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey
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


@pytest.mark.parametrize("seed", range(5))
def test_any_history_leaves_a_sound_tree(seed: int) -> None:
    """Insertions and removals in any order: links, counts and keys agree, and nothing else is found."""
    chance = random.Random(seed)
    planted = Planted(200)
    known: set[BlockKey] = set()
    for _ in range(300):
        if len(planted.free) > 8 and chance.random() < 0.6:
            tokens = [chance.randrange(2) for _ in range(4 * chance.randint(1, 6))]
            namespace = chance.choice((b"one", b"other"))
            planted.put(tokens, namespace)
            known |= set(planted.chain(tokens, namespace).keys)
        else:
            leaves = [block for block in planted.tree.blocks() if planted.tree.is_leaf(block)]
            if leaves:
                block = chance.choice(leaves)
                known.discard(planted.tree.remove(block)[0])
                planted.free.append(block)
        planted.tree.audit()
        assert len(planted.tree) == len(known)
        assert all(planted.tree.get(key) is not None for key in known)
