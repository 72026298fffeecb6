"""KVMemory: growth within limits, promises, what the runner must write, and an audit that finds mistakes."""

from collections.abc import Callable

import pytest

from engine.errors import InvariantError
from engine.memory.manager import KVMemory
from engine.memory.supply import Shortage
from engine.memory.table import BlockTable
from engine.request import SequenceId, TenantId
from engine.step import CacheShape

MINNOW, WHALE = TenantId("minnow"), TenantId("whale")


def make_memory(num_blocks: int = 8, *, minnow: int = 8, whale: int = 8) -> KVMemory:
    """Return a memory of 4-token blocks with two accounts of the given ceilings."""
    memory = KVMemory(CacheShape(num_blocks=num_blocks, block_size=4, block_bytes=100, max_rows=4, max_columns=16))
    memory.accounts.set_limits(MINNOW, soft=0, hard=minnow)
    memory.accounts.set_limits(WHALE, soft=0, hard=whale)
    return memory


def open_table(memory: KVMemory, number: int, tenant: TenantId = MINNOW, tokens: int = 0) -> BlockTable:
    """Open a table and grow it."""
    table = memory.open(SequenceId(number), tenant, 0.0)
    assert memory.grow(table, tokens, 0.0) is None
    return table


def test_grows_by_whole_blocks() -> None:
    """Five tokens need two blocks of four; a sixth to eighth need none more."""
    memory = make_memory()
    table = open_table(memory, 1, tokens=5)
    assert (len(table.blocks), table.capacity) == (2, 8)
    assert memory.grow(table, 8, 0.0) is None
    assert len(table.blocks) == 2
    memory.audit()


def test_never_passes_the_ceiling_of_an_account() -> None:
    """Growth above the account's limit is refused whole, whatever the pool has."""
    memory = make_memory(minnow=2)
    first, second = open_table(memory, 1, tokens=4), open_table(memory, 2, tokens=4)
    assert memory.grow(second, 5, 0.0) is Shortage.ACCOUNT
    assert (len(first.blocks), len(second.blocks)) == (1, 1)
    assert open_table(memory, 3, WHALE, tokens=24).account.blocks == 6
    memory.audit()


def test_says_when_the_pool_is_short() -> None:
    """Without free blocks growth is refused, and nothing is taken."""
    memory = make_memory(num_blocks=3)
    open_table(memory, 1, tokens=8)
    other = open_table(memory, 2, WHALE)
    assert memory.grow(other, 8, 0.0) is Shortage.POOL
    assert memory.pool.num_free == 1
    memory.audit()


def test_promised_blocks_are_kept_for_their_sequence() -> None:
    """What is reserved cannot be taken by others, and its sequence gets it without fail."""
    memory = make_memory(num_blocks=6)
    kept = open_table(memory, 1, tokens=4)
    assert memory.reserve(kept, 4) is None
    other = open_table(memory, 2, WHALE)
    assert memory.grow(other, 12, 0.0) is Shortage.POOL
    assert memory.grow(other, 8, 0.0) is None
    assert memory.grow(kept, 16, 0.0) is None
    assert memory.supply.reserved == 0
    memory.audit()


def test_promises_count_against_the_account() -> None:
    """An account's ceiling covers what its sequences were promised."""
    memory = make_memory(minnow=4)
    kept = open_table(memory, 1, tokens=4)
    assert memory.reserve(kept, 3) is None
    other = open_table(memory, 2, tokens=4)
    assert memory.grow(other, 5, 0.0) is Shortage.ACCOUNT
    assert memory.reserve(other, 2) is Shortage.ACCOUNT
    memory.unreserve(kept)
    assert memory.grow(other, 5, 0.0) is None
    memory.audit()


def test_hands_table_cells_and_poison_over_once() -> None:
    """New cells come in order with row and column; allocated and freed blocks are to be poisoned."""
    memory = make_memory()
    table = open_table(memory, 1, tokens=4)
    memory.grow(table, 9, 0.0)
    blocks = tuple(table.blocks)
    writes, poison, copies = memory.take_writes(0.0)
    assert [(write.row, write.column, write.blocks) for write in writes] == [
        (table.row, 0, blocks[:1]),
        (table.row, 1, blocks[1:]),
    ]
    assert poison == blocks
    assert not copies
    memory.free(table, 0.0)
    assert memory.take_writes(0.0) == ((), blocks[::-1], ())
    assert memory.take_writes(0.0) == ((), (), ())


def test_counts_block_seconds() -> None:
    """Held blocks are integrated over time, through growth, up to the end."""
    memory = make_memory()
    table = memory.open(SequenceId(1), MINNOW, 0.0)
    memory.grow(table, 4, 1.0)
    memory.grow(table, 12, 3.0)
    assert table.held(4.0) == pytest.approx(1 * 2 + 3 * 1)
    memory.free(table, 5.0)
    assert table.held(9.0) == pytest.approx(1 * 2 + 3 * 2)


def test_gives_everything_back() -> None:
    """Freeing returns blocks, promises and the row, and can be done once."""
    memory = make_memory()
    table = open_table(memory, 1, tokens=9)
    memory.reserve(table, 5)
    memory.seal(table, 9, range(9), 0.0)
    assert memory.pool.num_sealed == 2
    memory.free(table, 0.0)
    assert (memory.pool.num_free, memory.supply.reserved, memory.num_free_rows) == (8, 0, 4)
    memory.audit()
    with pytest.raises(InvariantError, match="twice"):
        memory.free(table, 0.0)


def test_keeps_the_peak_between_two_readings() -> None:
    """A peak is the highest use since it was last read, even when it is over."""
    memory = make_memory()
    keeper, passing = open_table(memory, 1, tokens=4), open_table(memory, 2, tokens=16)
    memory.free(passing, 0.0)
    assert keeper.account.take_peak() == 5
    assert keeper.account.take_peak() == 1


@pytest.mark.parametrize(
    "break_it",
    [
        lambda memory, table: setattr(table.account, "blocks", 1),
        lambda memory, table: setattr(table.account, "peak", 0),
        lambda memory, table: setattr(memory.supply, "reserved", 1),
        lambda memory, table: setattr(table, "num_sealed", 2),
        lambda memory, table: setattr(table, "capacity", 4),
        lambda memory, table: table.blocks.append(table.blocks[0]),
        lambda memory, table: table.blocks.pop(),
        lambda memory, table: setattr(table, "row", 0),
        lambda memory, table: memory.pool.seal(table.blocks[1]),
    ],
)
def test_audit_finds(break_it: Callable[[KVMemory, BlockTable], object]) -> None:
    """Whatever is changed behind the manager's back, the audit says so."""
    memory = make_memory()
    open_table(memory, 1, tokens=4)
    table = open_table(memory, 2, WHALE, tokens=8)
    memory.seal(table, 4, range(4), 0.0)
    memory.audit()
    break_it(memory, table)
    with pytest.raises(InvariantError):
        memory.audit()
