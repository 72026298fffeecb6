"""Figures and limit bars: the same on the server and in the browser, held to the browser's own cases."""

import json
from pathlib import Path

import pytest

from tenants.console import figures
from tenants.console.limit import limit_parts

LIB = Path(__file__).resolve().parents[3] / "frontend" / "src" / "lib"
CASES = json.loads((LIB / "figure.cases.json").read_text())
LIMITS = json.loads((LIB / "limit.cases.json").read_text())


@pytest.mark.parametrize(("amount", "value", "unit"), CASES["bytes"])
def test_bytes(amount: int, value: str, unit: str) -> None:
    """Bytes take the largest binary unit with a whole digit."""
    shown = figures.size(amount)
    assert (shown.value, shown.unit) == (value, unit)
    assert shown.exact.replace(figures.THIN, "") == f"{amount} bytes"


@pytest.mark.parametrize(("amount", "value"), CASES["count"])
def test_counts(amount: int, value: str) -> None:
    """Counts are grouped by thin spaces."""
    assert figures.count(amount).value == value


@pytest.mark.parametrize(("amount", "value"), CASES["rate"])
def test_rates(amount: float, value: str) -> None:
    """Rates have one decimal below 100."""
    assert figures.rate(amount).value == value


@pytest.mark.parametrize(("ms", "value", "unit"), CASES["duration"])
def test_durations(ms: float, value: str, unit: str) -> None:
    """Durations keep two or three digits."""
    shown = figures.duration(ms)
    assert (shown.value, shown.unit) == (value, unit)


@pytest.mark.parametrize("case", LIMITS)
def test_limit_parts(case: dict[str, object]) -> None:
    """The parts of a bar lie where the browser would move them."""
    use, cached, soft, hard = (case[name] for name in ("use", "cached", "soft", "hard"))
    assert limit_parts(use, soft, hard, cached=cached)._asdict() == case["parts"]  # type: ignore[arg-type]
