"""Cost of the memory core: planning, hashing, matching, the pool. No torch: steps are answered without a model.

    python -m bench.memory

Times are medians of processor time of this one thread: what the work costs, whatever else the machine does. (A busy
machine still slows it: caches and hyperthreads are shared.) They hold as wall time where the engine has a core.
"""

import argparse
import csv
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from engine.memory.keys import BlockHasher
from engine.memory.manager import KVMemory
from engine.memory.pool import BlockPool
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import GenerationRequest, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.plan import Scheduler
from engine.scheduler.sizing import Limits
from engine.step import CacheShape, StepPlan, StepResult

RESULTS = Path(__file__).parent / "results" / "memory.csv"
TENANT = TenantId("tenant")
BLOCK_SIZE = 16
LONG_PROMPT = 100_000  # tokens
POOL_BLOCKS = 1_000_000
LEAF_BLOCKS = 250_000  # of the pool that is filled with prompts of one block: it takes a while
STEP_BLOCKS = 50_000


@dataclass(frozen=True)
class Row:
    """One measured figure and what it should be."""

    case: str
    value: float
    unit: str
    target: float | None  # None: shown for what it is
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        """Say whether the target is met."""
        if self.target is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target


def shape(num_blocks: int, *, rows: int = 256, columns: int = 8192) -> CacheShape:
    """Return a pool's geometry."""
    return CacheShape(num_blocks=num_blocks, block_size=BLOCK_SIZE, block_bytes=1, max_rows=rows, max_columns=columns)


def make_scheduler(num_blocks: int, *, budget: int, tenants: Sequence[TenantId] = (TENANT,)) -> Scheduler:
    """Return a scheduler with tenants that have no limits but the pool."""
    limits = Limits(
        vocab_size=1_000_000,
        max_context=131_072,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        block_bytes=1,
    )
    scheduler = Scheduler(KVMemory(shape(num_blocks)), limits, max_batched_tokens=budget)
    policies = tuple(
        TenantPolicy(
            tenant=tenant,
            weight=1.0,
            kv_soft_bytes=0,
            kv_hard_bytes=num_blocks,
            max_running=256,
            max_queued=100_000,
            max_context_tokens=131_072,
            max_output_tokens=100_000,
        )
        for tenant in tenants
    )
    scheduler.apply(PolicyUpdate(version=1, epoch=0, snapshot=True, tenants=policies))
    return scheduler


def submit(scheduler: Scheduler, number: int, tenant: TenantId, prompt: Sequence[int], max_tokens: int) -> None:
    """Submit a request with no thought of sampling."""
    scheduler.submit(
        SequenceId(number),
        GenerationRequest(
            request_id=RequestId(str(number)),
            tenant=tenant,
            namespace=tenant.encode(),
            prompt=list(prompt),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
            arrived_at=time.monotonic(),
        ),
    )


def answer(plan: StepPlan) -> StepResult:
    """Return a step's result with tokens that end nothing."""
    count = sum(part.sampling is not None for part in plan.sequences)
    return StepResult(token_ids=tuple((plan.number * 7 + index) % 40_000 + 100 for index in range(count)), seconds=0.01)


def fill(scheduler: Scheduler, tenants: Sequence[TenantId], num_tokens: int, keep_free: int) -> None:
    """Run prompts of random tokens until most blocks of the pool are cached."""
    random = Random(4)
    number = 1_000_000
    while scheduler.memory.pool.num_free > keep_free:
        number += 1
        prompt = [random.randrange(50_000) for _ in range(num_tokens)]
        submit(scheduler, number, tenants[number % len(tenants)], prompt, 1)
        while (plan := scheduler.plan()) is not None:
            scheduler.commit(plan, answer(plan))


def measure_step(num_steps: int, *, full: bool = False) -> tuple[float, float, float]:
    """Return median, least and 99th percentile in µs of plan and commit with 256 decodes of four tenants.

    In a full pool each new block first takes a cached one's place.
    """
    tenants = [TenantId(f"tenant-{index}") for index in range(4)]
    scheduler = make_scheduler(STEP_BLOCKS, budget=8192, tenants=tenants)
    if full:
        fill(scheduler, tenants, 500, keep_free=200)
    random = Random(3)
    for number in range(256):
        prompt = [random.randrange(50_000) for _ in range(random.randint(100, 900))]
        submit(scheduler, number + 1, tenants[number % 4], prompt, 100_000)
    times: list[float] = []
    gc.collect()
    gc.freeze()
    while len(times) < num_steps:
        began = time.process_time()
        plan = scheduler.plan()
        planned = time.process_time()
        assert plan is not None, "256 requests run"
        result = answer(plan)
        computed = time.process_time()
        scheduler.commit(plan, result)
        ended = time.process_time()
        if len(plan.sequences) == plan.num_tokens == 256:
            times.append(ended - computed + planned - began)
    gc.unfreeze()
    times.sort()
    return times[len(times) // 2] * 1e6, times[0] * 1e6, times[len(times) * 99 // 100] * 1e6


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def measure_hashing() -> float:
    """Return ns a token for the keys of a long prompt."""
    hasher = BlockHasher(model=b"model", kv_format="auto", block_size=BLOCK_SIZE)
    root = hasher.root(b"namespace")
    tokens = [Random(1).randrange(50_000) for _ in range(LONG_PROMPT)]
    return median_seconds(lambda: hasher.extend([], root, tokens), 15) / LONG_PROMPT * 1e9


def measure_matching() -> float:
    """Return ms to find a long prompt, all of which is cached: its keys are made, too."""
    scheduler = make_scheduler(20_000, budget=LONG_PROMPT)
    random = Random(2)
    prompt = [random.randrange(50_000) for _ in range(LONG_PROMPT)]
    submit(scheduler, 1, TENANT, prompt, 1)
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(plan, answer(plan))
    memory = scheduler.memory
    account = memory.accounts.get(TENANT)
    assert account is not None, "it has a policy"

    def match() -> None:
        chain = memory.lookup.chain(account, TENANT.encode())
        assert chain is not None, "the namespace is the tenant's"
        found = memory.lookup.match(chain, prompt)
        assert found.num_tokens >= LONG_PROMPT - BLOCK_SIZE, "the whole prompt is cached"

    return median_seconds(match, 15) * 1e3


def measure_pairs() -> float:
    """Return allocations, each with its free, in millions a second, a hundred blocks at a time."""
    pool = BlockPool(100_000)

    def pairs() -> None:
        for _ in range(100):
            blocks = pool.allocate(100)
            assert blocks is not None, "the pool is empty"
            pool.free(blocks)

    return 10_000 / median_seconds(pairs, 15) / 1e6


def resident_bytes() -> int:
    """Return what the process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def pool_child() -> None:
    """Print start time, and bytes a block of a large pool when it is empty and when all of it is cached."""
    gc.collect()
    before, began = resident_bytes(), time.process_time()
    scheduler = make_scheduler(POOL_BLOCKS, budget=131_072)
    started = time.process_time() - began
    empty = resident_bytes() - before
    fill(scheduler, (TENANT,), LONG_PROMPT // 2, keep_free=10_000)
    gc.collect()
    print(started, empty / POOL_BLOCKS, (resident_bytes() - before) / POOL_BLOCKS)


def leaves_child() -> None:
    """Print bytes a block of a pool full of prompts of one block: all are candidates for eviction."""
    gc.collect()
    before = resident_bytes()
    memory = make_scheduler(LEAF_BLOCKS, budget=64).memory
    account = memory.accounts.get(TENANT)
    assert account is not None, "it has a policy"
    for number in range(LEAF_BLOCKS):
        tokens = [number % 50_000, number // 50_000] * (BLOCK_SIZE // 2)
        chain = memory.lookup.chain(account, b"namespace")
        table = memory.open(SequenceId(number), TENANT, float(number), chain=chain)
        assert memory.grow(table, BLOCK_SIZE, float(number)) is None, "a block is free"
        memory.seal(table, BLOCK_SIZE, tokens, float(number))
        memory.free(table, float(number))
        memory.take_writes(float(number))
    assert memory.pool.num_cached == LEAF_BLOCKS, "each has its own"
    gc.collect()
    print((resident_bytes() - before) / LEAF_BLOCKS)


def in_child(option: str) -> list[float]:
    """Return what this module prints with an option, in a fresh process whose memory nothing else has used."""
    command = [sys.executable, "-m", "bench.memory", option]
    return [float(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


def measure(num_steps: int) -> list[Row]:
    """Run all cases."""
    step, least, worst = measure_step(num_steps)
    crowded, crowded_least, crowded_worst = measure_step(num_steps, full=True)
    started, empty, full = in_child("--pool-child")
    (leaves,) = in_child("--leaves-child")
    return [
        Row("plan + commit, 256 decodes, p50", step, "µs", 250, note=f"least {least:.0f}, p99 {worst:.0f} µs"),
        Row(
            "the same in a full pool",
            crowded,
            "µs",
            None,
            note=f"least {crowded_least:.0f}, p99 {crowded_worst:.0f} µs; 16 blocks a step are evicted",
        ),
        Row("hashing", measure_hashing(), "ns/token", 40),
        Row(f"match of {LONG_PROMPT} cached tokens", measure_matching(), "ms", 10, note="keys included"),
        Row("start of 1,000,000 blocks", started, "s", 1),
        Row("1,000,000 blocks as they start", empty, "bytes/block", 150),
        Row("the same, all of them cached", full, "bytes/block", 150, note="keys, token ids, tree, history"),
        Row("all cached, each a leaf", leaves, "bytes/block", 150, note=f"{LEAF_BLOCKS:,} prompts of one block"),
        Row("allocate + free, by 100", measure_pairs(), "M pairs/s", 1, at_least=True),
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pool-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--leaves-child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pool_child or options.leaves_child:
        pool_child() if options.pool_child else leaves_child()
        return
    rows = measure(options.steps)
    print(f"{'case':34}{'result':>10} {'unit':12}{'target':>8}")
    for row in rows:
        wanted = "" if row.target is None else f"{'≥' if row.at_least else '≤'}{row.target:g}"
        verdict = "" if row.target is None else "met" if row.met else "MISSED"
        print(f"{row.case:34}{row.value:>10.3g} {row.unit:12}{wanted:>8}  {verdict:7} {row.note}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("case", "value", "unit", "target", "met", "note"))
        writer.writerows((row.case, f"{row.value:.6g}", row.unit, row.target, row.met, row.note) for row in rows)
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
