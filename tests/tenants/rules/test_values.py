"""Checks of single values."""

import pytest

from tenants.errors import Invalid
from tenants.rules import values


def test_text_is_trimmed() -> None:
    """Outer blanks are not part of a name."""
    assert values.text("name", "  Ada ", longest=3) == "Ada"


@pytest.mark.parametrize("wrong", ["", "   ", "a" * 11, "a\0b", "a\nb", "\ud800", None, 7, b"ab"])
def test_text_that_is_none_or_does_not_print_is_refused(wrong: object) -> None:
    """Control characters and half surrogate pairs never reach the database."""
    with pytest.raises(Invalid, match="name"):
        values.text("name", wrong, longest=10)


@pytest.mark.parametrize("wrong", ["Mars/Olympus", "", "../../etc/passwd", "utc", None])
def test_a_time_zone_must_exist(wrong: object) -> None:
    """Only names of the tz database pass."""
    assert values.time_zone("time_zone", "Europe/Berlin") == "Europe/Berlin"
    with pytest.raises(Invalid, match="time_zone"):
        values.time_zone("time_zone", wrong)
