"""What moved between tiers, and what is where: plain counts for whoever reports them."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from engine.memory.accounts import AccountOwner

LATENCY_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # as in engine.ipc; a last bucket is above all

DEVICE, HOST, DISK = "device", "host", "disk"


class Traffic:
    """What went one way between two tiers. One owner; `counts` is what others see."""

    __slots__ = ("_blocks", "_bytes", "_latencies", "_seconds")

    def __init__(self) -> None:
        self._blocks = self._bytes = 0
        self._seconds = 0.0
        self._latencies = [0] * (len(LATENCY_MS) + 1)

    def add(self, num_blocks: int, num_bytes: int, seconds: float) -> None:
        """Count one copy of so many blocks."""
        self._blocks += num_blocks
        self._bytes += num_bytes
        self._seconds += seconds
        self._latencies[bisect_left(LATENCY_MS, seconds * 1000)] += 1

    def counts(self, source: str, target: str) -> "TrafficCounts":
        """Return what was counted."""
        return TrafficCounts(source, target, self._blocks, self._bytes, self._seconds, tuple(self._latencies))


class TrafficCounts(NamedTuple):
    """What went from one tier to another since the core started; `latencies` counts copies by their bucket."""

    source: str
    target: str
    blocks: int
    bytes: int
    seconds: float
    latencies: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCounts:
    """The tiers at one moment; what is counted is counted since the core started."""

    host_bytes_total: int
    host_bytes_used: int
    disk_bytes_total: int  # 0: there is no disk tier
    disk_bytes_used: int
    disk_problem: str  # empty: it is healthy
    disk_errors: int
    host_bytes: Mapping[AccountOwner, int]  # by owner
    disk_bytes: Mapping[str, int]
    traffic: tuple[TrafficCounts, ...]
    hit_tokens: Mapping[str, int]  # prompt tokens found when requests were first admitted, by tier
    stall_seconds: float  # that requests waited for blocks from the disk
    prefetched_blocks: int
    prefetched_used_blocks: int
    num_lost_blocks: int  # worth keeping, and host memory had no room for them in time
    swap_chosen: int
    recompute_chosen: int
    fetch_chosen: int  # requests that waited for the disk
    fetch_late: int  # of them, those that started without all that they waited for
