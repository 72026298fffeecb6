"""What the machine can do at most, measured here and now: memory read and copied, and bf16 products."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

BYTES = 512 << 20  # many times any cache
SIZE = 2048  # of the square product


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Best of several tries each."""

    read: float  # bytes a second
    copy: float  # bytes a second, those read and those written together
    flops: float  # of bf16 products by oneDNN


def measure_limits() -> Limits:
    """Measure with torch's number of threads."""
    source = torch.ones(BYTES // 4)
    target = torch.empty_like(source)
    integers = source.view(torch.int32)
    left, right = (torch.randn(SIZE, SIZE).to(torch.bfloat16) for _ in range(2))
    reads = (lambda: source.sum(), lambda: integers.max(), lambda: torch.dot(source, source))
    return Limits(
        read=max(BYTES / best_seconds(read) for read in reads),
        copy=2 * BYTES / best_seconds(lambda: target.copy_(source)),
        flops=2 * SIZE**3 / best_seconds(lambda: left @ right),
    )


def best_seconds(call: Callable[[], object], *, tries: int = 12) -> float:
    """Return the shortest of several calls, after one that warms up."""
    call()
    found = []
    for _ in range(tries):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def seconds_each(calls: Callable[[int], object], *, count: int, seconds: float = 0.3) -> float:
    """Return the mean seconds of `calls(0)`, `calls(1)`, … up to `count`, over whole rounds of at least `seconds`.

    A caller whose calls touch different memory each measures memory, not the cache.
    """
    calls(0)
    rounds, began = 0, time.perf_counter()
    while rounds == 0 or time.perf_counter() - began < seconds:
        for number in range(count):
            calls(number)
        rounds += 1
    return (time.perf_counter() - began) / (rounds * count)
