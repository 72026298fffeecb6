"""The index of blocks by key: it finds what is there and nothing else, whatever came, went and collided."""

import random
from array import array
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey
from engine.memory.index import BlockIndex
from engine.request import BlockId

NUM_BLOCKS = 24


def colliding_key(number: int) -> BlockKey:
    """Return one of many keys: the first four bytes, which choose the slot, are the same for 16 of them."""
    return BlockKey((number // 16).to_bytes(4, "little") + bytes(24) + number.to_bytes(4, "big"))


NUMBERS = st.integers(0, 63)


class Machine(RuleBasedStateMachine):
    """An index with few slots beside a plain dict."""

    @initialize(num_slots=st.sampled_from((1, 2, 4, 32)))
    def start(self, num_slots: int) -> None:
        """Choose how crowded the slots are."""
        self.index = BlockIndex(NUM_BLOCKS, num_slots=num_slots)
        self.model: dict[BlockKey, BlockId] = {}
        self.free = [BlockId(block) for block in range(NUM_BLOCKS)]

    @precondition(lambda self: self.free)
    @rule(number=NUMBERS, place=st.integers(0, NUM_BLOCKS))
    def add(self, number: int, place: int) -> None:
        """A block joins under its key, unless another one has that key."""
        key, block = colliding_key(number), self.free[place % len(self.free)]
        known = self.index.add(key, block)
        assert known == self.model.get(key)
        if known is None:
            self.model[key] = block
            self.free.remove(block)

    @precondition(lambda self: self.model)
    @rule(place=st.integers(0, NUM_BLOCKS))
    def remove(self, place: int) -> None:
        """A block leaves, from whatever place of its chain, and gives its key."""
        key, block = list(self.model.items())[place % len(self.model)]
        assert self.index.remove(block) == key
        del self.model[key]
        self.free.append(block)

    @rule(numbers=st.lists(NUMBERS, max_size=8), limit=st.integers(0, 8))
    def find(self, numbers: list[int], limit: int) -> None:
        """The longest known run of leading keys is found."""
        keys = [colliding_key(number) for number in numbers]
        expected: list[BlockId] = []
        for key in keys[:limit]:
            if key not in self.model:
                break
            expected.append(self.model[key])
        assert self.index.find(keys, limit) == expected

    @invariant()
    def agrees(self) -> None:
        """Every key of the model is found, no other one is, and the audit is clean."""
        if not hasattr(self, "index"):
            return
        self.index.audit()
        assert len(self.index) == len(self.model)
        assert all(
            self.index.get(colliding_key(number)) == self.model.get(colliding_key(number)) for number in range(64)
        )
        assert set(self.index.blocks()) == set(self.model.values())
        assert not any(block in self.index for block in self.free)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("num_slots", [None, 1])
def test_long_churn_of_a_full_index(num_slots: int | None) -> None:
    """After many generations of blocks, at every load up to full, nothing is lost and no trace of the old is left."""
    chance = random.Random(5)
    index = BlockIndex(NUM_BLOCKS, num_slots=num_slots)
    held: dict[BlockId, BlockKey] = {}
    for number in range(20_000):
        if len(held) == NUM_BLOCKS or (held and chance.random() < 0.3):
            block = chance.choice(list(held))
            assert index.remove(block) == held[block]
            assert index.get(held.pop(block)) is None
        else:
            block = BlockId(chance.choice([block for block in range(NUM_BLOCKS) if block not in held]))
            held[block] = BlockKey(chance.randbytes(32))
            assert index.add(held[block], block) is None
        if number % 500 == 0:
            index.audit()
            assert all(index.get(key) == block for block, key in held.items())
    index.audit()
    for block in list(held):
        index.remove(block)
    index.audit()
    assert len(index) == 0


def test_whole_keys_are_compared() -> None:
    """Two keys that differ in their last bit are two."""
    index = BlockIndex(4)
    one, other = BlockKey(bytes(32)), BlockKey(bytes(31) + b"\x01")
    assert index.add(one, BlockId(0)) is None
    assert index.get(other) is None
    assert index.add(other, BlockId(1)) is None
    assert (index.get(one), index.get(other)) == (0, 1)


def test_refuses_misuse() -> None:
    """A block joins once, leaves once, under a key of 32 bytes."""
    index = BlockIndex(4)
    index.add(colliding_key(1), BlockId(2))
    with pytest.raises(InvariantError, match="twice"):
        index.add(colliding_key(2), BlockId(2))
    with pytest.raises(InvariantError, match="32 bytes"):
        index.add(BlockKey(b"short"), BlockId(3))
    index.remove(BlockId(2))
    with pytest.raises(InvariantError, match="not in the index"):
        index.remove(BlockId(2))


@pytest.mark.parametrize(
    "break_it",
    [
        lambda index: setattr(index, "_num", 2),
        lambda index: index._next.__setitem__(0, -2),
        lambda index: index._next.__setitem__(3, -1),
        lambda index: index._keys.__setitem__(0, 9),
        lambda index: index._keys.__setitem__(slice(32, 64), index._keys[:32]),
        lambda index: setattr(index, "_heads", array("i", [-1]) * 4),
    ],
)
def test_audit_finds(break_it: Callable[[BlockIndex], object]) -> None:
    """Whatever is changed in its arrays, the audit says so."""
    index = BlockIndex(4)
    for number in range(3):
        index.add(BlockKey(bytes(31) + bytes((number,))), BlockId(number))
    index.audit()
    break_it(index)
    with pytest.raises(InvariantError):
        index.audit()
