"""Checks of single values, whatever type a caller sent."""

import unicodedata
import zoneinfo

from tenants.errors import Invalid


def text(field: str, value: object, *, longest: int, shortest: int = 1) -> str:
    """Return `value` without outer blanks; refuse what is no text, too long, or holds characters that do not print."""
    if not isinstance(value, str):
        raise Invalid(field, f"{field} must be a string")
    stripped = value.strip()
    if not shortest <= len(stripped) <= longest:
        raise Invalid(field, f"{field} must have {shortest} to {longest} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in stripped):
        raise Invalid(field, f"{field} must not hold control characters or half surrogate pairs")
    return stripped


def whole(field: str, value: object, *, low: int, high: int) -> int:
    """Return `value` as an integer from `low` to `high`; True and 1.0 are not integers."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Invalid(field, f"{field} must be a whole number")
    if not low <= value <= high:
        raise Invalid(field, f"{field} must be from {low} to {high}")
    return value


def number(field: str, value: object, *, low: float, high: float) -> float:
    """Return `value` as a float from `low` to `high`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Invalid(field, f"{field} must be a number")
    if not low <= value <= high:  # also refuses NaN and infinities
        raise Invalid(field, f"{field} must be from {low:g} to {high:g}")
    return float(value)


def flag(field: str, value: object) -> bool:
    """Return `value` if it is true or false; 1 and "yes" are neither."""
    if not isinstance(value, bool):
        raise Invalid(field, f"{field} must be true or false")
    return value


def choice(field: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise Invalid(field, f"{field} must be one of {', '.join(allowed)}")
    return value


def time_zone(field: str, value: object) -> str:
    """Return `value` if it names a time zone of the tz database."""
    name = text(field, value, longest=64)
    if name not in zoneinfo.available_timezones():
        raise Invalid(field, f"{field} must be a name of the tz database, such as Europe/Berlin")
    return name
