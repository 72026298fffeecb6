"""Accounts: the seconds that one is above its guarantee."""

from engine.memory.accounts import Account, Accounts
from engine.memory.manager import KVMemory
from engine.request import TenantId
from tests.engine.memory.test_manager import MINNOW, WHALE, make_memory, open_table


def account(memory: KVMemory, tenant: TenantId = MINNOW) -> Account:
    """The tenant's account."""
    found = memory.accounts.get(tenant)
    assert found is not None
    return found


def test_time_above_the_guarantee_is_counted_from_the_change_to_the_change() -> None:
    """Growth of several blocks and growth by one both start it, giving back ends it."""
    memory = make_memory()
    memory.accounts.set_limits(MINNOW, soft=2, hard=8)
    table = open_table(memory, 1, tokens=8)
    memory.accounts.settle(1.0)
    assert account(memory).seconds_above(5.0) == 0.0
    assert memory.grow(table, 9, 5.0) is None
    memory.accounts.settle(5.0)
    assert account(memory).seconds_above(7.5) == 2.5
    other = open_table(memory, 2, tokens=8)
    memory.accounts.settle(8.0)
    memory.free(table, 9.0)
    memory.accounts.settle(9.0)
    assert account(memory).seconds_above(20.0) == 4.0
    memory.free(other, 20.0)
    memory.accounts.settle(20.0)
    assert account(memory).seconds_above(30.0) == 4.0
    assert account(memory, WHALE).seconds_above(30.0) == 0.0


def test_a_moved_guarantee_starts_and_ends_it() -> None:
    """Also where all guarantees are scaled down together."""
    memory = make_memory(num_blocks=8)
    memory.accounts.set_limits(MINNOW, soft=4, hard=8)
    open_table(memory, 1, tokens=16)
    memory.accounts.settle(0.0)
    memory.accounts.set_limits(WHALE, soft=8, hard=8)
    memory.accounts.fit_guarantees()
    memory.accounts.settle(1.0)
    memory.accounts.set_limits(WHALE, soft=0, hard=8)
    memory.accounts.fit_guarantees()
    memory.accounts.settle(3.5)
    assert account(memory).seconds_above(9.0) == 2.5


def test_an_account_that_opens_again_starts_anew() -> None:
    """A closed one is not looked at any more, whoever has its index."""
    accounts = Accounts(8)
    first = accounts.set_limits(MINNOW, soft=0, hard=8)
    first.blocks = 1
    accounts.settle(0.0)
    first.blocks = 0
    accounts.close(MINNOW)
    again = accounts.set_limits(MINNOW, soft=0, hard=8)
    accounts.settle(5.0)
    assert (again.index, again.seconds_above(9.0)) == (first.index, 0.0)
