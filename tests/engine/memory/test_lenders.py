"""Lenders against a look at every account: whatever changes, and in whatever order, both say the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvariantError
from engine.memory.accounts import Account, Accounts
from engine.request import TenantId

NAMES = [TenantId(f"tenant-{number}") for number in range(6)]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["take", "cache", "use", "evict", "free", "limit", "close", "ask", "settle"]),
        st.sampled_from(NAMES),
        st.integers(0, 5),
    ),
    max_size=120,
)


def change(accounts: Accounts, kind: str, name: TenantId, amount: int) -> None:
    """Do to an account what a pool would, as far as it has blocks for it."""
    account = accounts.get(name)
    if kind == "limit" or account is None:
        accounts.set_limits(name, soft=amount, hard=100)
        accounts.fit_guarantees()
    elif kind == "take":
        account.blocks += amount
    elif kind == "cache":
        account.cached += min(amount, account.used)
    elif kind == "use":
        account.cached -= min(amount, account.cached)
    elif kind == "evict":
        for _ in range(min(amount, account.cached)):
            account.blocks -= 1
            account.cached -= 1
    elif kind == "free":
        account.blocks -= min(amount, account.used)
    elif kind == "close" and not account.blocks:
        accounts.close(name)
    elif kind == "settle":
        accounts.settle(float(amount))


def largest(accounts: Accounts, besides: Account) -> Account | None:
    """Look at every account, in the order of opening."""
    lenders = (account for account in accounts if account is not besides and account.takeable)
    return max(lenders, key=lambda account: account.overage, default=None)


@settings(max_examples=300, deadline=None)
@given(changes=CHANGES, capacity=st.sampled_from([8, 1000]))
def test_lenders_are_those_that_a_look_at_every_account_finds(
    changes: list[tuple[str, TenantId, int]], capacity: int
) -> None:
    """The largest borrower, the one opened first among equals, and the sums; guarantees may be scaled down."""
    accounts = Accounts(capacity)
    for kind, name, amount in changes:
        change(accounts, kind, name, amount)
        if kind != "ask":
            continue  # most questions find several changes since the last
        for account in accounts:
            others = [other for other in accounts if other is not account]
            assert accounts.largest_borrower(account) is largest(accounts, account)
            assert accounts.takeable(account) == sum(other.takeable for other in others)
            assert accounts.unused_guarantees(account) == sum(max(0, one.soft - one.blocks) for one in others)
        assert accounts.takeable() == sum(account.takeable for account in accounts)
        assert accounts.borrowed() == sum(account.borrowed for account in accounts)
    accounts.audit()


def test_a_need_takes_from_the_largest_again_and_again() -> None:
    """Block by block, each from whoever has most above its guarantee by then; equals give in turn."""
    accounts = Accounts(1000)
    needy = accounts.set_limits(TenantId("needy"), soft=0, hard=100)
    for name, blocks in (("a", 5), ("b", 7), ("c", 7), ("d", 9)):
        lender = accounts.set_limits(TenantId(name), soft=2, hard=100)
        lender.blocks, lender.cached = blocks, blocks - 1
    order = []
    while (giver := accounts.largest_borrower(needy)) is not None:
        order.append(str(giver.owner))
        giver.blocks -= 1
        giver.cached -= 1
    assert "".join(order) == "dd" + "bcd" * 2 + "abcd" * 3
    assert {account.takeable for account in accounts} == {0}


def test_the_heap_does_not_grow_with_what_has_changed() -> None:
    """Ten thousand changes of two accounts leave some entries, not ten thousand."""
    accounts = Accounts(100)
    one, other = (accounts.set_limits(TenantId(name), soft=0, hard=100) for name in "ab")
    for number in range(10_000):
        one.blocks = one.cached = 1 + number % 7
        other.blocks = other.cached = 1 + number % 5
        assert accounts.largest_borrower(other) is one
    assert len(accounts._lenders._heap) < 300


def test_audit_finds_what_changed_behind_its_back() -> None:
    """Sums that are not those of the accounts are a mistake of ours."""
    accounts = Accounts(100)
    account = accounts.set_limits(TenantId("a"), soft=0, hard=100)
    accounts.audit()
    accounts.takeable(account)
    account._blocks = account._cached = 3
    with pytest.raises(InvariantError, match="untouched"):
        accounts.audit()
