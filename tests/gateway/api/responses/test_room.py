"""How fast a tenant may fill the store."""

import pytest

from gateway.api.responses.room import Room


def test_a_tenant_that_stores_too_much_waits() -> None:
    """Not before it is over, and until enough time has passed; another one doesn't."""
    room = Room(600)
    assert room.wait("a", 0.0) == 0
    room.take("a", 550, 0.0)
    assert room.wait("a", 0.0) == 0
    room.take("a", 150, 0.0)
    assert room.wait("a", 0.0) == pytest.approx(10)
    assert room.wait("b", 0.0) == 0
    assert room.wait("a", 4.0) == pytest.approx(6)
    assert room.wait("a", 10.0) == 0


def test_a_minute_of_rest_is_forgotten() -> None:
    """Then all of it may come at once, and no more than that."""
    room = Room(600)
    room.take("a", 600, 0.0)
    assert room.wait("a", 1000.0) == 0
    room.take("a", 600, 1000.0)
    assert room.wait("a", 1000.0) == 0
    room.take("a", 60, 1000.0)
    assert room.wait("a", 1000.0) == pytest.approx(6)
