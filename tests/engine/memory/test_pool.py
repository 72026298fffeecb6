"""The pool: every block is in exactly one state, and shortage is a result."""

import pytest

from engine.errors import InvariantError
from engine.memory.pool import FREE, OPEN, SEALED, BlockPool


def test_hands_out_each_block_once() -> None:
    """All blocks can be had, each once, and then no more."""
    pool = BlockPool(5)
    first, rest = pool.allocate(1), pool.allocate(4)
    assert first is not None
    assert rest is not None
    assert sorted(first + rest) == [0, 1, 2, 3, 4]
    assert pool.allocate(1) is None
    assert (pool.num_free, pool.num_open, pool.num_sealed) == (0, 5, 0)


def test_takes_nothing_when_too_few_are_free() -> None:
    """An allocation that cannot be met in full leaves the pool as it was."""
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    pool.audit()


def test_moves_blocks_through_their_states() -> None:
    """Free → open → sealed → free, with the counts at each point."""
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    assert blocks is not None
    assert pool.state(blocks[0]) == OPEN
    pool.seal(blocks[0])
    assert pool.state(blocks[0]) == SEALED
    assert (pool.num_open, pool.num_sealed) == (1, 1)
    pool.audit()
    pool.free(blocks)
    assert pool.state(blocks[0]) == FREE
    assert (pool.num_free, pool.num_open, pool.num_sealed) == (2, 0, 0)
    pool.audit()


def test_refuses_misuse() -> None:
    """A block freed twice, or sealed when it is not open, is our own mistake and raises."""
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.seal(blocks[0])
    with pytest.raises(InvariantError, match="not open"):
        pool.seal(blocks[0])
    pool.free(blocks)
    with pytest.raises(InvariantError, match="twice"):
        pool.free(blocks)


def test_audit_finds_a_wrong_count() -> None:
    """The audit recounts and does not trust the counters."""
    pool = BlockPool(4)
    pool.allocate(2)
    pool.num_open = 1
    pool.num_sealed = 1
    with pytest.raises(InvariantError, match="counted"):
        pool.audit()
