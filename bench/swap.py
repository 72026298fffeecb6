"""Swapping with the real model: copy rates against this machine's memcpy, and a preempted sequence's way back.

    python -m bench.swap

A sequence of 1,400 tokens loses its blocks to a lowered limit and has them again. Measured is the time from the first
step after the limit is raised to its next token: with its blocks loaded from host memory, and computed again.
"""

import argparse
import csv
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.core import make_scheduler
from engine.model.folder import resolve_model
from engine.model.runner import ModelRunner
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import BlockId, GenerationRequest, RequestId, SamplingParams, SequenceId, SlabId, TenantId
from engine.scheduler.plan import Scheduler
from engine.scheduler.step_time import StepTimeModel
from engine.scheduler.swap_cost import SwapCost
from engine.step import SequenceStep, SlabMove, StepPlan, TableWrite

RESULTS = Path(__file__).parent / "results" / "swap.csv"
TENANT = TenantId("tenant")
NUM_TOKENS = 1400
NUM_COPIED = 88  # blocks: as many as those tokens take
_MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One measured figure."""

    case: str
    value: float
    unit: str
    note: str = ""


def copy_rates(repeats: int) -> list[Row]:
    """Measure stores and loads of one sequence's blocks as steps tell them, and a plain copy of as many bytes."""
    config = EngineConfig(kv_bytes=256 * _MIB)
    runner = ModelRunner(config, resolve_model(config))
    blocks = [BlockId(3 * index % runner.shape.num_blocks) for index in range(1, NUM_COPIED + 1)]
    moves = tuple(SlabMove(block, SlabId(index)) for index, block in enumerate(blocks))
    part = SequenceStep(SequenceId(1), 0, 0, [1], SamplingParams(temperature=0.0))
    table = (TableWrite(0, 0, (BlockId(0),)),)
    num_bytes = NUM_COPIED * runner.shape.block_bytes
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    times: dict[str, list[float]] = {"memcpy": [], "store": [], "load": []}
    for number in range(repeats):
        began = time.perf_counter()
        target.copy_(source)
        times["memcpy"].append(time.perf_counter() - began)
        plan = StepPlan(number=number, sequences=(part,), table_writes=table, stores=moves, loads=moves)
        result = runner.launch(plan).wait()
        times["store"].append(result.store_seconds)
        times["load"].append(result.load_seconds)
    least = {name: min(some[1:]) for name, some in times.items()}  # the first one is to warm up
    note = f"of memcpy, {num_bytes / 1e6:.0f} MB"
    return [
        Row(name, num_bytes / seconds / 1e9, "GB/s", f"{least['memcpy'] / seconds:.0%} {note}")
        for name, seconds in least.items()
    ]


class Forced(SwapCost):
    """Says that one way is free."""

    def __init__(self, block_bytes: int, *, swaps: bool) -> None:
        super().__init__(block_bytes, StepTimeModel())
        self._swaps = swaps

    def compute_seconds(self, start: int, end: int) -> float:
        """Return for ever, or nothing."""
        return 1e9 if self._swaps else 0.0


class Engine:
    """One tenant on the real model, whose limit moves."""

    def __init__(self) -> None:
        config = EngineConfig(kv_bytes=256 * _MIB)
        folder = resolve_model(config)
        self.runner = ModelRunner(config, folder)
        self.scheduler: Scheduler = make_scheduler(config, folder, self.runner)
        self._version = self._number = 0
        self.tokens: dict[int, int] = {}

    def limit(self, num_blocks: int) -> None:
        """Set the tenant's hard limit."""
        self._version += 1
        policy = TenantPolicy(
            tenant=TENANT,
            kv_hard_bytes=num_blocks * self.runner.shape.block_bytes,
            host_bytes=1 << 30,
            max_running=8,
            max_queued=8,
            max_context_tokens=4096,
            max_output_tokens=4096,
        )
        self.scheduler.apply(PolicyUpdate(version=self._version, epoch=0, snapshot=True, tenants=(policy,)))

    def step(self) -> bool:
        """Run one step; say whether there was one."""
        plan = self.scheduler.plan()
        if plan is not None:
            for output in self.scheduler.commit(plan, self.runner.launch(plan).wait()):
                self.tokens[output.sequence] = self.tokens.get(output.sequence, 0) + len(output.token_ids)
        return plan is not None

    def come_back(self, *, swaps: bool) -> float:
        """Return the seconds from a raised limit to the next token of a sequence that had to go."""
        self.scheduler.roster.swapping.cost = Forced(self.runner.shape.block_bytes, swaps=swaps)
        self._number += 1
        number, shape = self._number, self.runner.shape
        self.limit(shape.num_blocks)
        prompt = [(number * 7919 + place * 31) % 40_000 + 100 for place in range(NUM_TOKENS)]
        sampling = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
        request = GenerationRequest(
            request_id=RequestId(str(number)), tenant=TENANT, namespace=b"secret", prompt=prompt, sampling=sampling
        )
        self.scheduler.submit(SequenceId(number), request)
        while self.tokens.get(number, 0) < 4:
            self.step()
        self.limit(1)
        while self.scheduler.memory.pool.num_cached + self.scheduler.memory.pool.num_sealed > 1:
            self.step()
        self.limit(shape.num_blocks)
        before, began = self.tokens[number], time.perf_counter()
        while self.tokens[number] == before:
            self.step()
        took = time.perf_counter() - began
        self.scheduler.cancel([SequenceId(number)])
        self.step()
        return took


def ways_back(repeats: int) -> list[Row]:
    """Measure both ways in turn."""
    engine = Engine()
    engine.come_back(swaps=True)
    engine.come_back(swaps=False)
    pairs = [(engine.come_back(swaps=True), engine.come_back(swaps=False)) for _ in range(repeats)]
    swapped, computed = (statistics.median(times) for times in zip(*pairs, strict=True))
    return [
        Row("next token, swapped", swapped * 1e3, "ms", f"{swapped / computed:.3f} of computing again"),
        Row("next token, computed again", computed * 1e3, "ms", f"{NUM_TOKENS} tokens"),
    ]


def main() -> None:
    """Print the figures and write them down."""
    parser = argparse.ArgumentParser(description="Swapping to host memory, with the real model.")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows = copy_rates(4 * options.repeats) + ways_back(options.repeats)
    for row in rows:
        print(f"{row.case:30} {row.value:10.2f} {row.unit:5} {row.note}")
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("case", "value", "unit", "note"))
        writer.writerows((row.case, f"{row.value:.4g}", row.unit, row.note) for row in rows)


if __name__ == "__main__":
    main()
