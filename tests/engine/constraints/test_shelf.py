"""What is kept for each tenant, as long as there is room."""

from hypothesis import given
from hypothesis import strategies as st

from engine.constraints.shelf import Shelf


def test_nobody_sees_what_another_has() -> None:
    """The same key is another thing for another tenant."""
    shelf: Shelf[str, int] = Shelf(10, tenant_most=5)
    shelf.put("whale", "a", 1)
    assert shelf.get("minnow", "a") is None
    shelf.put("minnow", "a", 2)
    assert (shelf.get("whale", "a"), shelf.get("minnow", "a")) == (1, 2)


def test_what_was_asked_for_last_stays() -> None:
    """Of one tenant's things the one goes that nobody has asked for since."""
    shelf: Shelf[str, int] = Shelf(10, tenant_most=2)
    shelf.put("minnow", "a", 1)
    shelf.put("minnow", "b", 2)
    assert shelf.get("minnow", "a") == 1
    shelf.put("minnow", "c", 3)
    assert [shelf.get("minnow", key) for key in "abc"] == [1, None, 3]


def test_who_has_most_makes_room() -> None:
    """Many things of one tenant push out its own, never those of one that has few."""
    shelf: Shelf[int, int] = Shelf(10, tenant_most=9)
    shelf.put("minnow", 0, 0)
    for number in range(100):
        shelf.put("whale", number, number)
    shelf.put("carp", 0, 0)
    assert shelf.get("minnow", 0) == shelf.get("carp", 0) == 0
    assert (shelf.size, shelf.tenant_size("whale")) == (10, 8)


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    """It goes at once, and takes nothing of others with it."""
    shelf: Shelf[str, int] = Shelf(10, tenant_most=5)
    shelf.put("minnow", "a", 1)
    shelf.put("whale", "b", 2, size=11)
    assert shelf.get("whale", "b") is None
    assert (shelf.get("minnow", "a"), shelf.size) == (1, 1)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 12)), max_size=80))
def test_sizes_hold(puts: list[tuple[str, int, int]]) -> None:
    """Whatever is put: neither bound is ever passed, sizes are what is there, and the newest is kept if it can be."""
    shelf: Shelf[int, int] = Shelf(20, tenant_most=10)
    for tenant, key, size in puts:
        shelf.put(tenant, key, size, size)
        assert shelf.size == sum(shelf.tenant_size(one) for one in "abcd") <= 20
        kept = {one: [shelf.get(one, number) for number in range(6)] for one in "abcd"}
        for one in "abcd":
            assert shelf.tenant_size(one) == sum(value or 0 for value in kept[one]) <= 10
