"""Growth by one block has a short way for the common case: it must do what the long way does, whatever the limits."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.manager import KVMemory
from engine.memory.supply import Shortage
from engine.memory.table import BlockTable
from engine.request import SequenceId, TenantId
from engine.step import CacheShape

MINNOW, WHALE = TenantId("minnow"), TenantId("whale")
NUM_BLOCKS = 8


class LongWay(KVMemory):
    """A memory that finds every block the long way."""

    def _grow_by_one(self, table: BlockTable, now: float) -> bool:
        return False


class Twin:
    """One memory under a series of actions, and what came of each."""

    def __init__(self, make: Callable[[CacheShape], KVMemory]) -> None:
        self.memory = make(
            CacheShape(num_blocks=NUM_BLOCKS, block_size=2, block_bytes=1, max_rows=4, max_columns=NUM_BLOCKS)
        )
        self.contents: dict[SequenceId, list[int]] = {}
        self.lengths: dict[SequenceId, int] = {}
        self.results: list[object] = []
        self.number = 0
        for tenant in (MINNOW, WHALE):
            self.memory.accounts.set_limits(tenant, soft=2, hard=NUM_BLOCKS)

    def limit(self, tenant: TenantId, soft: int, hard: int) -> None:
        """Change an account's limits."""
        self.memory.accounts.set_limits(tenant, soft=soft, hard=hard)
        self.memory.accounts.fit_guarantees()

    def start(self, tenant: TenantId, stem: int) -> None:
        """Open a table on what is known of a prompt."""
        account = self.memory.accounts.get(tenant)
        if account is None or not self.memory.num_free_rows:
            return
        chain = self.memory.lookup.chain(account, tenant.encode())
        assert chain is not None
        content = [stem, *range(2 * NUM_BLOCKS)]
        match = self.memory.lookup.without_part(self.memory.lookup.match(chain, content[:3]), chain)
        self.number += 1
        table = self.memory.open(SequenceId(self.number), tenant, 0.0, chain=chain, match=match)
        self.contents[table.sequence] = content
        self.lengths[table.sequence] = match.num_tokens

    def grow(self, place: int, count: int) -> None:
        """Let a sequence have some more tokens."""
        for table in list(self.memory.tables.values())[place : place + 1]:
            for _ in range(count):
                length = self.lengths[table.sequence] + 1
                shortage = self.memory.grow(table, length, 0.0)
                self.results.append(shortage)
                if shortage is not None:
                    break
                self.lengths[table.sequence] = length
                self.memory.seal(table, length, self.contents[table.sequence], 0.0)

    def promise(self, place: int, count: int) -> None:
        """Promise a sequence blocks."""
        for table in list(self.memory.tables.values())[place : place + 1]:
            self.results.append(self.memory.reserve(table, count))

    def end(self, place: int) -> None:
        """Let a sequence go: its full blocks stay cached."""
        for table in list(self.memory.tables.values())[place : place + 1]:
            self.memory.free(table, 0.0)

    def state(self) -> object:
        """Return everything that can be told from outside."""
        memory = self.memory
        memory.audit()
        accounts = [(one.owner, one.blocks, one.cached, one.reserved, one.peak) for one in memory.accounts]
        tables = [(table.row, table.blocks, table.reserved) for table in memory.tables.values()]
        return self.results, accounts, tables, set(memory.tree.blocks()), memory.take_writes(0.0)


TENANTS, PLACES = st.sampled_from((MINNOW, WHALE)), st.integers(0, 3)
ACTIONS = st.one_of(
    st.tuples(st.just("start"), TENANTS, st.integers(0, 2)),
    st.tuples(st.just("grow"), PLACES, st.integers(1, 5)),
    st.tuples(st.just("promise"), PLACES, st.integers(1, 4)),
    st.tuples(st.just("end"), PLACES),
    st.tuples(st.just("limit"), TENANTS, st.integers(0, 5), st.integers(0, NUM_BLOCKS)),
)


@settings(max_examples=200, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=40))
def test_the_short_way_is_the_long_way(actions: list[tuple[object, ...]]) -> None:
    """Two memories, one without the short way, stay the same block for block."""
    twins = Twin(KVMemory), Twin(LongWay)
    for name, *arguments in actions:
        for twin in twins:
            getattr(twin, str(name))(*arguments)
        assert twins[0].state() == twins[1].state()


@pytest.mark.parametrize("num_cached", [1, 3])
def test_an_account_above_a_lowered_ceiling_gives_its_cache_first(num_cached: int) -> None:
    """A decode goes on when its account's cache can make room, one block for one while it drains; else it is told."""
    twin = Twin(KVMemory)
    memory = twin.memory
    twin.start(MINNOW, 7)
    twin.grow(0, 2 * num_cached)
    twin.end(0)
    twin.start(MINNOW, 8)
    twin.grow(0, 2)
    table = next(iter(memory.tables.values()))
    twin.limit(MINNOW, 0, 2)
    assert memory.grow(table, 3, 0.0) is None
    assert (table.account.blocks, table.account.cached) == (1 + num_cached, num_cached - 1)
    assert memory.grow(table, 5, 0.0) is Shortage.ACCOUNT
    memory.audit()
