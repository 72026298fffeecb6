"""The time series: which range may be asked for, how coarse its points are, and how even service was."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from tenants.errors import Invalid

STEPS = (10, 60, 300, 900, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)  # seconds between two points
MOST_STEPS = 360  # points of one line
MOST_POINTS = 10_000  # of all lines together
LONGEST = timedelta(days=92)
USUAL = timedelta(hours=1)
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
FINE = timedelta(hours=24)  # how long rows of ten seconds last


def time_range(start: datetime | None, end: datetime | None, now: datetime) -> tuple[datetime, datetime]:
    """Return the range from `start` to `end`; without an end until now, without a start the hour before the end.

    Raises:
        Invalid: names the parameter, `from` or `to`, and what it may be.
    """
    for field, at in (("from", start), ("to", end)):
        if at is not None and not EARLIEST <= at <= LATEST:
            raise Invalid(field, f"{field} must be a time from {EARLIEST.year} to {LATEST.year}")
    end = end or now
    start = start or end - USUAL
    if start >= end:
        field = "from" if start < now else "to"
        raise Invalid(field, f"from ({start:%Y-%m-%dT%H:%M:%SZ}) must be before to ({end:%Y-%m-%dT%H:%M:%SZ})")
    if end - start > LONGEST:
        raise Invalid("from", f"from and to may be {LONGEST.days} days apart at most: ask for parts of the range")
    return start, end


def step_seconds(start: datetime, end: datetime, num_lines: int, now: datetime) -> int:
    """Return how far apart the points of a range are: as close as the data is and as an answer can hold."""
    most = max(1, min(MOST_STEPS, MOST_POINTS // max(1, num_lines)))
    finest = STEPS[0] if now - start <= FINE else 300
    seconds = (end - start).total_seconds()
    return next((step for step in STEPS if step >= finest and seconds / step <= most), STEPS[-1])


def align(at: datetime, step: int) -> datetime:
    """Return the beginning of the step that a moment lies in; steps count from the epoch."""
    return datetime.fromtimestamp(at.timestamp() // step * step, UTC)


def jain(shares: Iterable[float]) -> float | None:
    """Return Jain's index of fairness, (Σx)² ÷ (n · Σx²): 1 when all have the same, 1/n when one has all.

    None without anybody, or when nobody has anything: nothing was shared out. "A Quantitative Measure of Fairness and
    Discrimination for Resource Allocation in Shared Computer Systems", Jain, Chiu and Hawe, 1984.
    """
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def entitled(service: Mapping[str, float], weight: Mapping[str, float], backlogged: Mapping[str, bool]) -> list[float]:
    """Return service ÷ weight of the tenants that count: those that were served, or had requests waiting."""
    return [
        service[tenant] / (weight[tenant] or 1.0) for tenant in service if service[tenant] > 0 or backlogged[tenant]
    ]
