"""What moved between tiers, and what is where: plain counts for whoever reports them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from engine.memory.accounts import AccountOwner

DEVICE, HOST, DISK = "device", "host", "disk"


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
