"""KVMemory's cache: what stays findable, whose it is, who may take it, and copies before the first write."""

import pytest

from engine.memory.accounts import Account
from engine.memory.eviction.base import CachedNode
from engine.memory.keys import KeyChain
from engine.memory.lookup import Match
from engine.memory.manager import KVMemory
from engine.memory.pool import CACHED, OPEN, SEALED
from engine.memory.supply import Shortage
from engine.memory.table import BlockTable
from engine.request import SequenceId, TenantId
from engine.step import CacheShape

MINNOW, WHALE, CARP = TenantId("minnow"), TenantId("whale"), TenantId("carp")


def make_memory(num_blocks: int = 8, **soft: int) -> KVMemory:
    """Return a memory of 4-token blocks with three accounts."""
    memory = KVMemory(CacheShape(num_blocks=num_blocks, block_size=4, block_bytes=100, max_rows=8, max_columns=16))
    for tenant in (MINNOW, WHALE, CARP):
        memory.accounts.set_limits(tenant, soft=soft.get(tenant, 0), hard=num_blocks)
    return memory


def account_of(memory: KVMemory, tenant: TenantId) -> Account:
    """Return a tenant's account."""
    account = memory.accounts.get(tenant)
    assert account is not None
    return account


class Runner:
    """Opens tables for prompts and computes them."""

    def __init__(self, memory: KVMemory) -> None:
        self.memory = memory
        self.number = 0
        self.tokens: dict[int, list[int]] = {}

    def look_up(self, tokens: list[int], tenant: TenantId = MINNOW) -> tuple[KeyChain, Match]:
        """Return a prompt's chain and match."""
        account = account_of(self.memory, tenant)
        chain = self.memory.lookup.chain(account, tenant.encode())
        assert chain is not None
        return chain, self.memory.lookup.match(chain, tokens)

    def start(self, tokens: list[int], tenant: TenantId = MINNOW, now: float = 0.0) -> BlockTable:
        """Open a table with what is known, grow it to hold the prompt."""
        chain, match = self.look_up(tokens, tenant)
        self.number += 1
        table = self.memory.open(SequenceId(self.number), tenant, now, chain=chain, match=match)
        assert self.memory.grow(table, len(tokens), now) is None
        self.memory.copy_part(table, match)
        self.tokens[self.number] = tokens
        return table

    def finish(self, table: BlockTable, now: float = 0.0) -> None:
        """Seal what the prompt fills and give the table back."""
        tokens = self.tokens[table.sequence]
        self.memory.take_writes(now)
        self.memory.seal(table, len(tokens), tokens, now)
        self.memory.audit()
        self.memory.free(table, now)
        self.memory.audit()

    def run(self, tokens: list[int], tenant: TenantId = MINNOW, now: float = 0.0) -> list[int]:
        """Compute a prompt and return the blocks that held it."""
        table = self.start(tokens, tenant, now)
        blocks: list[int] = list(table.blocks)
        self.finish(table, now)
        return blocks


@pytest.fixture
def memory() -> KVMemory:
    """Eight blocks, no guarantees."""
    return make_memory()


@pytest.fixture
def runner(memory: KVMemory) -> Runner:
    """A runner over the memory."""
    return Runner(memory)


def test_full_blocks_stay_when_their_sequence_ends(memory: KVMemory, runner: Runner) -> None:
    """They are cached on the tenant's account; the open one is free again."""
    blocks = runner.run(list(range(10)))
    assert [memory.pool.state(block) for block in blocks[:2]] == [CACHED, CACHED]  # type: ignore[arg-type]
    assert (memory.pool.num_cached, memory.pool.num_free) == (2, 6)
    account = account_of(memory, MINNOW)
    assert (account.blocks, account.cached, account.used) == (2, 2, 0)


def test_a_second_prompt_shares_them(memory: KVMemory, runner: Runner) -> None:
    """Two running sequences hold one block each counts once on the account."""
    runner.run(list(range(10)))
    one, other = runner.start(list(range(10))), runner.start(list(range(12)))
    assert one.blocks[:2] == other.blocks[:2]
    assert memory.pool.users(one.blocks[0]) == 2
    assert account_of(memory, MINNOW).blocks == 4
    runner.finish(one)
    assert memory.pool.state(other.blocks[0]) == SEALED
    runner.finish(other)


def test_the_last_token_is_always_computed(runner: Runner) -> None:
    """A prompt that is known whole leaves one token to compute: its logits are what is asked for."""
    runner.run(list(range(8)))
    assert runner.look_up(list(range(8)))[1].num_tokens == 7


def test_a_part_is_copied(memory: KVMemory, runner: Runner) -> None:
    """Below the last whole block the agreeing tokens of another one are copied, its holder untouched."""
    blocks = runner.run([0, 1, 2, 3, 4, 5, 6, 7])
    table = runner.start([0, 1, 2, 3, 4, 5, 9, 9])
    _, _, copies = memory.take_writes(0.0)
    assert copies == ((blocks[1], table.blocks[1]),)
    assert table.blocks[1] != blocks[1]
    memory.audit()


def test_a_copy_that_is_not_needed_any_more_is_dropped(memory: KVMemory, runner: Runner) -> None:
    """A table that is given up before the step takes its copy along, and its source is free to go again."""
    runner.run([0, 1, 2, 3, 4, 5, 6, 7])
    table = runner.start([0, 1, 2, 3, 4, 5, 9, 9])
    memory.free(table, 0.0)
    memory.audit()
    assert memory.take_writes(0.0)[2] == ()
    assert account_of(memory, MINNOW).used == 0


def test_equal_blocks_of_two_sequences_become_one(memory: KVMemory, runner: Runner) -> None:
    """Computed twice side by side, a block is kept once: the second table gets the first one's."""
    one, other = runner.start(list(range(8))), runner.start(list(range(8)))
    memory.take_writes(0.0)
    memory.seal(one, 8, range(8), 0.0)
    memory.seal(other, 8, range(8), 0.0)
    assert one.blocks == other.blocks
    writes, poison, _ = memory.take_writes(0.0)
    assert [write.blocks for write in writes] == [(one.blocks[0],), (one.blocks[1],)]
    assert len(poison) == 2
    assert account_of(memory, MINNOW).blocks == 2
    memory.audit()


def test_a_tenant_in_need_reuses_its_own_cache_first(memory: KVMemory, runner: Runner) -> None:
    """With nothing free, the own cached block goes before a larger borrower's."""
    runner.run(list(range(100, 120)), WHALE)
    runner.run(list(range(12)), MINNOW)
    assert memory.pool.num_free == 0
    runner.start(list(range(50, 54)), MINNOW)
    assert (account_of(memory, WHALE).cached, account_of(memory, MINNOW).cached) == (5, 2)
    memory.audit()


def test_the_largest_borrower_gives_next(memory: KVMemory, runner: Runner) -> None:
    """A tenant without a cache takes from whoever is furthest above its guarantee, leaves first."""
    memory.accounts.set_limits(WHALE, soft=4, hard=8)
    runner.run(list(range(100, 120)), WHALE)
    runner.run(list(range(12)), MINNOW)
    runner.start(list(range(50, 58)), CARP)
    assert (account_of(memory, WHALE).cached, account_of(memory, MINNOW).cached) == (5, 1)
    assert runner.look_up(list(range(12)))[1].num_tokens == 4
    memory.audit()


def test_a_cache_within_its_guarantee_is_not_taken() -> None:
    """What a tenant holds within soft stays, whatever others need; the last resort alone takes it."""
    memory = make_memory(whale=8)
    runner = Runner(memory)
    runner.run(list(range(100, 120)), WHALE)
    table = memory.open(SequenceId(99), MINNOW, 0.0)
    assert memory.grow(table, 13, 0.0) is Shortage.POOL
    assert memory.grow(table, 12, 0.0) is None
    assert account_of(memory, WHALE).cached == 5
    assert memory.grow(table, 16, 0.0, last_resort=True) is None
    assert account_of(memory, WHALE).cached == 4
    memory.audit()


def test_a_ceiling_counts_the_cache(runner: Runner, memory: KVMemory) -> None:
    """An account at its ceiling gives up its own cached blocks for new ones, though others are free."""
    memory.accounts.set_limits(MINNOW, soft=0, hard=3)
    runner.run(list(range(12)))
    table = runner.start(list(range(50, 58)))
    assert account_of(memory, MINNOW).blocks == 3
    assert account_of(memory, MINNOW).cached == 1
    assert memory.pool.num_free == 5
    assert memory.grow(table, 16, 0.0) is Shortage.ACCOUNT
    memory.audit()


def test_a_lowered_ceiling_trims_the_cache(runner: Runner, memory: KVMemory) -> None:
    """Cached blocks above a lowered limit go, the rest stays findable."""
    runner.run(list(range(16)))
    memory.accounts.set_limits(MINNOW, soft=0, hard=2)
    memory.trim(account_of(memory, MINNOW))
    assert account_of(memory, MINNOW).blocks == 2
    assert runner.look_up(list(range(16)))[1].num_tokens == 8
    memory.audit()


def test_a_namespace_belongs_to_one_account(memory: KVMemory) -> None:
    """A tenant that names another's namespace shares nothing; nor does one that names none."""
    assert memory.lookup.chain(account_of(memory, MINNOW), b"secret") is not None
    assert memory.lookup.chain(account_of(memory, WHALE), b"secret") is None
    assert memory.lookup.chain(account_of(memory, WHALE), b"") is None


def test_an_account_is_forgotten_with_its_cache(runner: Runner, memory: KVMemory) -> None:
    """After a tenant is removed nothing of it can be found, and its namespace is free again."""
    runner.run(list(range(8)))
    memory.forget(MINNOW)
    assert memory.pool.num_free == 8
    assert memory.accounts.get(MINNOW) is None
    memory.accounts.set_limits(MINNOW, soft=0, hard=8)
    assert runner.look_up(list(range(8)))[1].num_tokens == 0
    memory.audit()


def test_a_fork_copies_the_open_block_at_the_first_write(memory: KVMemory, runner: Runner) -> None:
    """Full blocks stay shared; the open one is copied for whoever writes first, and then is the other's alone."""
    parent = runner.start(list(range(10)))
    memory.take_writes(0.0)
    memory.seal(parent, 10, range(10), 0.0)
    child = memory.fork(SequenceId(50), parent, 10, 0.0)
    assert child.blocks == parent.blocks
    assert account_of(memory, MINNOW).blocks == 3
    shared = parent.blocks[2]
    assert memory.pool.state(shared) == OPEN
    assert memory.pool.users(shared) == 2
    assert memory.write_at(child, 10, 0.0) is None
    assert child.blocks[2] != shared
    assert memory.write_at(parent, 10, 0.0) is None
    memory.audit()
    writes, _, copies = memory.take_writes(0.0)
    assert copies == ((shared, child.blocks[2]),)
    assert (writes[-1].row, writes[-1].column, writes[-1].blocks) == (child.row, 2, (child.blocks[2],))
    assert parent.blocks[2] == shared
    assert memory.pool.users(shared) == 1
    memory.free(parent, 0.0)
    memory.free(child, 0.0)
    memory.audit()
    assert account_of(memory, MINNOW).used == 0


class DeepestFirst:
    """An order that keeps what was given back first."""

    generation = 0

    def key(self, key: bytes, node: CachedNode) -> float:
        """Return minus the last use."""
        return -node.last_use

    def looked_up(self, keys: object, num_found: int, now: float) -> None:
        """Take no note."""

    def stored(self, key: bytes, now: float, before: bytes | None = None) -> int:
        """Remember nothing."""
        return 0

    def evicted(self, key: bytes, hits: int) -> None:
        """Remember nothing."""


def test_the_policy_decides_between_leaves_and_may_change() -> None:
    """The order in force says which prompt goes first; a new generation sorts the candidates anew."""
    orders: list[DeepestFirst] = []

    def make_order() -> DeepestFirst:
        orders.append(DeepestFirst())
        return orders[-1]

    memory = KVMemory(
        CacheShape(num_blocks=3, block_size=4, block_bytes=100, max_rows=8, max_columns=16), make_order=make_order
    )
    memory.accounts.set_limits(MINNOW, soft=0, hard=3)
    runner = Runner(memory)
    for number in range(3):
        runner.run([number] * 4, now=float(number))
    runner.start([9, 9, 9], now=4.0)
    assert runner.look_up([2, 2, 2, 2, 0])[1].num_tokens == 0
    orders[0].key = lambda key, node: node.last_use  # type: ignore[method-assign]
    orders[0].generation += 1
    runner.start([8, 8, 8], now=5.0)
    assert runner.look_up([0, 0, 0, 0, 0])[1].num_tokens == 0
    assert runner.look_up([1, 1, 1, 1, 0])[1].num_tokens == 4
    memory.audit()


def test_a_forgotten_account_leaves_nothing_in_host_memory() -> None:
    """All tiers are given up with the account."""
    memory = KVMemory(CacheShape(num_blocks=4, block_size=4, block_bytes=100, max_rows=8, max_columns=16, num_slabs=4))
    account = memory.accounts.set_limits(MINNOW, soft=0, hard=4)
    memory.host.limit(MINNOW, 4)
    runner = Runner(memory)
    table = runner.start(list(range(8)))
    runner.finish(table)
    assert table.chain is not None
    memory.host.claims.claim(table.sequence, MINNOW, table.chain.keys[:1])
    account.hard = 1
    memory.trim(account)
    assert memory.host.used(MINNOW) == 1, "kept, though nobody waits for it"
    account.hard = 0
    memory.trim(account)
    assert memory.host.used(MINNOW) == 2
    memory.host.claims.release(table.sequence)
    memory.forget(MINNOW)
    assert memory.host.num_used == 0
    memory.audit()
