"""Hit rates of plain LRU, our eviction policy and Belady's oracle on the Mooncake conversation trace.

    python -m bench.eviction           report on the second half, after the first has filled the cache
    python -m bench.eviction --fit     search the policy's constants on the first half alone

Targets: at 1k and 3k blocks at least 20 % of the gap from LRU to Belady; nowhere over 0.5 points below LRU.
"""

import argparse
import csv
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

from bench.trace import load
from engine.memory.eviction import simulate
from engine.memory.eviction.guard import GuardedOrder
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.reuse import ReuseWeighted
from engine.memory.eviction.simulate import Prompt, belady

SIZES = (1_000, 3_000, 10_000, 30_000)
GAP_TARGET = {1_000: 0.20, 3_000: 0.20}
MOST_BELOW = 0.005
RESULTS = Path(__file__).parent / "results" / "eviction.csv"


def report(trace: Sequence[Prompt], warm_up: int) -> list[dict[str, str]]:
    """Print a line for each cache size; return them."""
    rows = []
    print(f"{'blocks':>8}{'LRU':>9}{'ours':>9}{'Belady':>9}{'gap closed':>12}{'target':>9}{'in force':>10}")
    for size in SIZES:
        order = GuardedOrder(ReuseWeighted())
        ours = simulate.simulate(trace, size, order, warm_up=warm_up).share
        lru = simulate.simulate(trace, size, GuardedOrder(LeastRecentlyUsed()), warm_up=warm_up).share
        best = belady(trace, size, warm_up=warm_up).share
        closed, target = (ours - lru) / (best - lru), GAP_TARGET.get(size)
        met = ours >= lru - MOST_BELOW and (target is None or closed >= target)
        wanted = f"{target:.0%}" if target is not None else f"≥ {lru - MOST_BELOW:.4f}"
        verdict = "met" if met else "MISSED"
        print(
            f"{size:>8}{lru:>9.4f}{ours:>9.4f}{best:>9.4f}{closed:>12.1%}{wanted:>9}{order.in_force:>10} {verdict}",
            flush=True,
        )
        rows.append(
            {"blocks": str(size), "lru": f"{lru:.4f}", "ours": f"{ours:.4f}", "belady": f"{best:.4f}"}
            | {"gap_closed": f"{closed:.4f}", "target": wanted, "met": str(met), "in_force": order.in_force}
        )
    return rows


def fit(trace: Sequence[Prompt]) -> None:
    """Print the mean share of the gap closed, over the sizes, for each pair of constants."""
    ends = [
        (size, simulate.simulate(trace, size, GuardedOrder(LeastRecentlyUsed())).share, belady(trace, size).share)
        for size in SIZES
    ]
    for bonus, most in itertools.product((30.0, 60.0, 100.0, 150.0, 300.0), (3, 6, 15)):
        rates = [simulate.simulate(trace, size, GuardedOrder(ReuseWeighted(bonus, most))).share for size, _, _ in ends]
        closed = [(rate - low) / (high - low) for rate, (_, low, high) in zip(rates, ends, strict=True)]
        print(
            f"{bonus:5.0f} s × {most:2}: {sum(closed) / len(closed):6.1%}   {[round(rate, 4) for rate in rates]}",
            flush=True,
        )


def main() -> None:
    """Run the report or the fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    trace = [request.prompt for request in load()]
    half = len(trace) // 2
    simulate.block_key = functools.cache(simulate.block_key)
    if options.fit:
        fit(trace[:half])
        return
    rows = report(trace, half)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
