"""Who may hold how many bytes of bodies."""

import pytest

from gateway.admission.buffers import LEAST_BYTES, Buffers, Hold
from gateway.api.errors import Overloaded, RateLimited

MIB = 1 << 20


def held(buffers: Buffers, holder: str, num_bytes: int) -> Hold:
    """Return a hold of so many bytes."""
    hold = buffers.hold(holder)
    hold.cover(num_bytes)
    return hold


def test_one_alone_has_a_quarter() -> None:
    """More is refused with a time to wait, and what is refused counts nothing."""
    buffers = Buffers(64 * MIB)
    holds = [held(buffers, "a", 4 * MIB) for _ in range(4)]
    late = buffers.hold("a")
    with pytest.raises(RateLimited) as caught:
        late.cover(LEAST_BYTES)
    assert (caught.value.status, caught.value.error_code) == (429, "too_many_bodies")
    assert b"retry-after-ms" in dict(caught.value.headers)
    assert buffers.num_bytes == 16 * MIB
    holds[0].close()
    late.cover(4 * MIB)


def test_however_many_hold_all_they_can_one_who_comes_has_room() -> None:
    """Tenants that take what they get leave a share of the rest to the next; the sum is never over the bound."""
    buffers = Buffers(256 * MIB)
    for number in range(8):
        num_before, refused = buffers.num_bytes, False
        while not refused:
            try:
                held(buffers, f"greedy {number}", 64 << 10)
            except RateLimited:
                refused = True
        assert buffers.num_bytes > num_before
        assert buffers.num_bytes <= 256 * MIB
    held(buffers, "late", 4 * MIB)


def test_where_others_hold_too_much_it_is_not_the_callers_fault() -> None:
    """A body for which there is no room whatever the caller gives up is a 503."""
    buffers = Buffers(16 * MIB)
    held(buffers, "a", 4 * MIB)
    with pytest.raises(Overloaded):
        held(buffers, "b", 4 * MIB)
    held(buffers, "b", 3 * MIB)


def test_a_small_body_counts_for_its_request() -> None:
    """Thousands of bodies of no bytes are not free."""
    buffers = Buffers(64 * MIB)
    hold = held(buffers, "a", 0)
    assert buffers.num_bytes == LEAST_BYTES
    hold.cover(10)
    assert buffers.num_bytes == LEAST_BYTES
    hold.cover(LEAST_BYTES + 1)
    assert buffers.num_bytes == LEAST_BYTES + 1


def test_nothing_is_left_behind() -> None:
    """Neither bytes nor the names of those who held some, also where a hold is closed twice or never grew."""
    buffers = Buffers(64 * MIB)
    holds = [held(buffers, name, 100_000) for name in "abcab"] + [buffers.hold("d")]
    with pytest.raises(RateLimited):
        holds[0].cover(16 * MIB - 100_000)
    with pytest.raises(Overloaded):
        buffers.hold("e").cover(17 * MIB)
    assert buffers.num_bytes == 500_000
    for hold in holds + holds:
        hold.close()
    assert (buffers.num_bytes, buffers.num_holders) == (0, 0)
