"""The GPU that is measured, its measured limits, and how time is taken on it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

GIGA = 1e9
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Limits:
    """Measured in the same run."""

    copy: float  # bytes a second, those read and those written together
    flops: float  # of a bf16 product by cuBLAS


def device(*, tiny: bool) -> torch.device:
    """Return where the kernels run; tiny: interpreted, on the CPU."""
    return CPU if tiny else torch.device("cuda")


def dtypes(*, tiny: bool) -> tuple[torch.dtype, ...]:
    """Return what is checked; the interpreter's bfloat16 is wrong."""
    return (torch.float32, torch.float16) if tiny else (torch.bfloat16, torch.float32)


def measure_limits(*, tiny: bool) -> Limits:
    """Copy what no cache holds; multiply large squares."""
    where, count, size = device(tiny=tiny), 1 << 12 if tiny else 1 << 30, 64 if tiny else 8192
    source, target = (torch.zeros(count, dtype=torch.bfloat16, device=where) for _ in range(2))
    seconds = seconds_each(lambda _: target.copy_(source), count=4, where=where)
    left, right = (torch.randn(size, size, device=where).to(torch.bfloat16) for _ in range(2))
    product = seconds_each(lambda _: left @ right, count=8, where=where)
    return Limits(copy=2 * source.nbytes / seconds, flops=2 * size**3 / product)


def seconds_each(call: Callable[[int], object], *, count: int, where: torch.device, rounds: int = 7) -> float:
    """Return the median seconds of a call, of `rounds` rounds of `call(0)` to `call(count - 1)`.

    On a GPU a round is one CUDA graph: what Python and launches cost is left out, as it is in an engine's graphs.
    """
    call(0)
    if where.type == "cpu":
        began = time.perf_counter()
        call(0)
        return time.perf_counter() - began
    call(count - 1)  # what is compiled must be compiled before the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(count):
            call(number)
    graph.replay()
    found = []
    for _ in range(rounds):
        begins, ends = (_event() for _ in range(2))
        begins.record()
        graph.replay()
        ends.record()
        ends.synchronize()
        found.append(begins.elapsed_time(ends) / 1e3 / count)
    return float(statistics.median(found))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
