"""What both sides of the worker's protocol have to know alike, and cannot import from each other."""

from engine.disk.events import LATENCY_MS as TOLD
from tenants.reports import LATENCY_MS as READ


def test_bounds_of_latencies() -> None:
    """The bounds of a worker's buckets are those that the metrics name."""
    assert TOLD == READ
