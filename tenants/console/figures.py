"""Numbers as the console shows them: a short value, a quiet unit, the exact value for the title.

`frontend/src/lib/figure.ts` writes the same for what changes live; `figure.cases.json` beside it holds both to it.
"""

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

THIN = "\u2009"
BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Figure(NamedTuple):
    """A number to be shown."""

    value: str
    unit: str
    exact: str

    def __str__(self) -> str:
        return f"{self.value} {self.unit}".strip()


def grouped(amount: float) -> str:
    """Return a whole number with its digits grouped by thin spaces."""
    return f"{math.floor(amount + 0.5):,}".replace(",", THIN)


def size(amount: int) -> Figure:
    """Return bytes in the largest binary unit that keeps a whole digit; a multiple of the unit has no decimals."""
    last = len(BYTE_UNITS) - 1
    power = 0
    while power < last and amount >= 1024 ** (power + 1):
        power += 1
    # 1023.9 KiB must not read "1024 KiB": what rounds up to the next unit is written in it
    if 0 < power < last and math.floor(amount / 1024**power + 0.5) >= 1024:
        power += 1
    scaled = amount / 1024**power
    value = str(int(scaled)) if scaled.is_integer() else _digits(scaled)
    return Figure(value, BYTE_UNITS[power], f"{grouped(amount)} bytes")


def count(amount: int, unit: str = "") -> Figure:
    """Return a whole number with its unit."""
    return Figure(grouped(amount), unit, f"{grouped(amount)} {unit}".strip())


def rate(amount: float, unit: str = "tok/s") -> Figure:
    """Return a rate a second: one decimal under 100, whole above."""
    value = "0" if amount == 0 else _fixed(amount, 1) if amount < 99.95 else grouped(amount)
    return Figure(value, unit, f"{amount:.3f} {unit}")


def duration(ms: float) -> Figure:
    """Return milliseconds in the unit that keeps two or three digits."""
    exact = f"{ms:.3f} ms"
    if ms < 999.5:
        return Figure(_fixed(ms, 1 if ms < 9.95 else 0), "ms", exact)
    if ms < 99_950:
        return Figure(_digits(ms / 1000), "s", exact)
    return Figure(_digits(ms / 60_000), "min", exact)


def _digits(value: float) -> str:
    return _fixed(value, 2 if value < 9.995 else 1 if value < 99.95 else 0)


def _fixed(value: float, places: int) -> str:
    """Round as browsers do: the nearest, and of two the larger."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP))
