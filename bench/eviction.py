"""Hit rates under foretold reuse, plain LRU and Belady's oracle on the Mooncake conversation trace.

    python -m bench.eviction

The reuse model is trained as `python -m engine.train` does it, on the first half of the trace alone; the report is on
the second half, after the first has filled the cache. `hits` is recency weighted by hits, `table` the hazard table that
every account learns by itself, `model` the trained one, `worker` what a worker with a model does: all of them under the
guard. Then what an eviction and a look-up cost, in processor time, with the real memory manager.

Targets: of the gap from LRU to Belady more than recency weighted by hits closed of it before there was a predictor;
nowhere over 0.5 points below LRU.
"""

import csv
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.memory import TENANT, answer, make_scheduler, submit
from bench.trace import BLOCK_TOKENS, TraceRequest, load
from engine.memory.eviction import simulate
from engine.memory.eviction.guard import Foresight, GuardedOrder
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.model import ReuseModel
from engine.memory.eviction.reuse import ReuseWeighted
from engine.memory.eviction.simulate import belady_finds, block_key, finds

SIZES = (1_000, 3_000, 10_000, 30_000)
GAP_BEFORE = {1_000: 0.283, 3_000: 0.310, 10_000: 0.140, 30_000: 0.122}
MOST_BELOW = 0.005
RESULTS = Path(__file__).parent / "results" / "eviction.csv"
TRAIN_SECONDS = 60.0
_COST_BLOCKS, _COST_PROMPTS, _COST_TOKENS = 4096, 400, 1024

Row = dict[str, str]


class Share(NamedTuple):
    """What was found of what was asked for in the second half, 0 to 1."""

    blocks: float
    tokens: float


def train(requests: Sequence[TraceRequest]) -> ReuseModel | None:
    """Train on some requests and tell how it went."""
    import torch

    from engine.train.asked import Ask, Asked
    from engine.train.training import train

    torch.set_num_threads(1)
    asks = [Ask(request.at, "tenant", list(request.blocks), []) for request in requests]
    weights, metrics = train(Asked(asks, BLOCK_TOKENS), time.process_time() + TRAIN_SECONDS)
    print(
        f"trained on {metrics.prompts} prompts in {metrics.cpu_seconds:.0f} s: AUC {metrics.auc:.3f} on what was held"
        f" out (table {metrics.auc_table:.3f}), {metrics.seconds:g} s a logarithm{'; ' if metrics.reason else ''}"
        f"{metrics.reason}",
        flush=True,
    )
    return None if weights is None else ReuseModel(weights)


def makers(model: ReuseModel | None) -> dict[str, Callable[[], GuardedOrder]]:
    """Return what makes each order that is compared."""
    made: dict[str, Callable[[], GuardedOrder]] = {
        "lru": lambda: GuardedOrder(LeastRecentlyUsed()),
        "hits": lambda: GuardedOrder(ReuseWeighted()),
        "table": GuardedOrder,
    }
    if model is not None:
        foresight = Foresight()
        foresight.model = model
        made |= {"model": lambda: GuardedOrder(model), "worker": lambda: GuardedOrder(foresight=foresight)}
    return made


def report(requests: Sequence[TraceRequest], model: ReuseModel | None) -> list[Row]:
    """Print hit rates and shares of the gap for each size of the cache; return them."""
    trace, half = [request.prompt for request in requests], len(requests) // 2
    rows: list[Row] = []
    for size in SIZES:
        best = _share(requests[half:], belady_finds(trace, size)[half:])
        lru, met = Share(0.0, 0.0), True
        for name, make in makers(model).items():
            order = make()
            share = _share(requests[half:], finds(trace, size, order)[half:])
            if name == "lru":
                lru = share
            closed = (share.blocks - lru.blocks) / (best.blocks - lru.blocks)
            met = share.blocks >= lru.blocks - MOST_BELOW and (name != "worker" or closed > GAP_BEFORE[size])
            rows.append(_row(size, name, share, closed) | {"in_force": order.in_force, "met": str(met)})
            _print(rows[-1])
        rows.append(_row(size, "belady", best, 1.0) | {"in_force": "", "met": ""})
        _print(rows[-1])
    return rows


def costs(model: ReuseModel | None) -> list[Row]:
    """Print what an evicted block and a look-up cost, in µs of processor time; return that."""
    rows: list[Row] = []
    for name, make in makers(model).items():
        evict, look_up = _cost(make)
        rows.append({"order": name, "evict_us": f"{evict:.1f}", "look_up_us_a_block": f"{look_up:.2f}"})
        print(f"{name:>8}: {evict:6.1f} µs an evicted block, {look_up:6.2f} µs a block looked up", flush=True)
    return rows


def _cost(make: Callable[[], GuardedOrder]) -> tuple[float, float]:
    """Return µs to evict a block, and to look one up in a prompt of 64, in a pool full of prompts."""
    scheduler = make_scheduler(_COST_BLOCKS, budget=8192)
    supply = scheduler.memory.supply
    order = make()
    supply.reclaim._make_order = lambda: order
    spent = {"evict": 0.0, "look_up": 0.0}
    counts = {"evict": 0, "look_up": 0}

    def timed(name: str, call: Callable[..., None], count: Callable[..., int]) -> Callable[..., None]:
        def run(*args: object, **named: object) -> None:
            began = time.perf_counter()
            call(*args, **named)
            spent[name] += time.perf_counter() - began
            counts[name] += count(*args)

        return run

    supply.evict = timed("evict", supply.evict, lambda *_: 1)  # type: ignore[method-assign]
    for number in range(_COST_PROMPTS):
        prompt = [number * 7919 % 40_000 + place for place in range(_COST_TOKENS)]
        submit(scheduler, number + 1, TENANT, prompt, 1)
        while (plan := scheduler.plan()) is not None:
            scheduler.commit(plan, answer(plan))
    keys = [block_key(number) for number in range(64)]
    look_up = timed("look_up", order.looked_up, lambda keys, *_: len(keys))
    for number in range(200):
        look_up(keys, 0, 1e5 + number)
    return 1e6 * spent["evict"] / max(1, counts["evict"]), 1e6 * spent["look_up"] / counts["look_up"]


def _share(requests: Sequence[TraceRequest], found: Sequence[int]) -> Share:
    tokens = sum(min(count * BLOCK_TOKENS, one.input_tokens) for one, count in zip(requests, found, strict=True))
    blocks = sum(len(one.blocks) for one in requests)
    return Share(sum(found) / blocks, tokens / sum(one.input_tokens for one in requests))


def _row(size: int, name: str, share: Share, closed: float) -> Row:
    return {
        "blocks": str(size),
        "order": name,
        "hit_rate": f"{share.blocks:.4f}",
        "token_hit_rate": f"{share.tokens:.4f}",
        "gap_closed": f"{closed:.4f}",
    }


def _print(row: Row) -> None:
    verdict = {"True": "met", "False": "MISSED"}.get(row["met"], "")
    print(
        f"{row['blocks']:>8}{row['order']:>8}{row['hit_rate']:>9}{row['token_hit_rate']:>9}"
        f"{float(row['gap_closed']):>8.1%}  {row['in_force']:>6} {verdict}",
        flush=True,
    )


def main() -> None:
    """Train, then report."""
    requests = load()
    simulate.block_key = functools.cache(simulate.block_key)
    model = train(requests[: len(requests) // 2])
    print(f"{'blocks':>8}{'order':>8}{'blocks':>9}{'tokens':>9}{'of gap':>8}  {'in force'}")
    rows = report(requests, model)
    paid = costs(model)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for path, table in ((RESULTS, rows), (RESULTS.with_name("eviction_costs.csv"), paid)):
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(table[0]))
            writer.writeheader()
            writer.writerows(table)
        print(f"written: {path}")


if __name__ == "__main__":
    main()
