"""Which slots are written to next, and what is known to lie in them."""

from engine.disk.slots import NOTHING, Slots, Trace
from tests.engine.disk.stores import key

ONE, OTHER = Trace(key(1), "a"), Trace(key(2), "b")


def taken(slots: Slots, count: int) -> list[int]:
    """Take slots."""
    places = [slots.take() for _ in range(count)]
    return [place[0] for place in places if place is not None]


def test_files_are_begun_one_by_one_up_to_the_ceiling() -> None:
    """In order, with the numbers that are free; the last one is as long as there is room."""
    slots = Slots(10, 4, {1: 4}, 0)
    assert taken(slots, 9) == [0, 1, 2, 3, 8, 9]
    assert slots.extents == {1: 4, 0: 4, 2: 2}
    assert slots.take() is None


def test_room_that_other_files_take_is_not_given() -> None:
    """Until they are gone."""
    slots = Slots(8, 4, {}, 6)
    assert taken(slots, 8) == [0, 1]
    slots.reserved = 0
    assert taken(slots, 8) == [4, 5, 6, 7, 8, 9]


def test_what_must_go_is_overwritten_first_what_was_given_up_next() -> None:
    """And only then new room is used: it tells what each slot holds."""
    slots = Slots(4, 4, {}, 0)
    assert taken(slots, 2) == [0, 1]
    slots.give_left(0, ONE)
    slots.give_dirty(1, frozenset({OTHER}))
    assert [slots.take() for _ in range(3)] == [(1, {OTHER}), (0, {ONE}), (2, NOTHING)]


def test_spoiling_finds_what_may_hold_a_block() -> None:
    """By key or by owner; what may be anybody's is always among it."""
    slots = Slots(5, 5, {}, 0)
    assert taken(slots, 5) == [0, 1, 2, 3, 4]
    slots.give_left(0, ONE)
    slots.give_left(1, OTHER)
    slots.give_left(2, ONE)
    slots.give_dirty(3, None)
    assert slots.spoil([], "b") == {1, 3}
    assert slots.spoil([key(1)], None) == {0, 2, 3}
    assert slots.spoil([key(9)], "nobody") == {3}
    assert sorted(slots.unclean()) == [0, 1, 2, 3]


def test_a_slot_that_cannot_be_wiped_is_set_aside() -> None:
    """It is not written to before another try has gone well."""
    slots = Slots(1, 1, {}, 0)
    assert taken(slots, 1) == [0]
    slots.give_dirty(0, frozenset({ONE}))
    assert slots.next_wipe() == 0
    assert slots.take() is None
    slots.wiped(0, ok=False)
    assert slots.take() is None
    assert slots.next_wipe() is None
    assert slots.spoil([key(1)], None) == {0}
    slots.try_again()
    assert slots.next_wipe() == 0
    slots.wiped(0, ok=True)
    assert slots.take() == (0, NOTHING)


def test_an_extent_without_room_is_set_aside() -> None:
    """All of it, and no other is begun, until the next try."""
    slots = Slots(8, 4, {}, 0)
    assert taken(slots, 1) == [0]
    slots.park(0)
    assert slots.is_short
    assert slots.take() is None
    assert sorted(slots.without_block()) == slots.all() == [0, 1, 2, 3]
    slots.try_again()
    assert taken(slots, 9) == list(range(8))
    assert slots.is_short
    slots.has_made(0)
    assert not slots.is_short
