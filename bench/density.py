"""How much fits into the same KV pool: paged and shared against one allocation at full length per request. No torch.

    python -m bench.density

1. Concurrency. Lengths of the Mooncake conversation trace: prompts scaled to a context of 8,192 tokens by the ratio to
   the service's 131,072, outputs as they were. All prompts differ, so that no sharing helps. The scheduler is not told
   how long an output will be: every request asks for 2,000 tokens, and ends when the trace's did.
   Static allocation holds pool ÷ context requests, whatever their length.
2. Sharing. A hundred users of one prefix of 2,000 tokens, each with a question and an answer of its own.
3. Waste. Tokens stored ÷ slots allocated, over all steps, for requests of 1 to 4,000 tokens.

Everything runs through the scheduler and a runner that checks every read, and the audit is clean at the end.
"""

import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.trace import load
from engine.memory.manager import KVMemory
from engine.policy import PolicyUpdate, SharedPrefix, ShareGroup, TenantPolicy
from engine.request import GenerationRequest, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.plan import Scheduler
from engine.scheduler.sizing import Limits
from engine.step import CacheShape, StepResult
from tests.engine.fake_runner import FakeRunner

RESULTS = Path(__file__).parent / "results" / "density.csv"
BLOCK_SIZE = 16
CONTEXT = 8192
TRACE_CONTEXT = 131_072
POOL_CONTEXTS = 16  # the pool holds so many requests of full length
NUM_REQUESTS = 500
MAX_OUTPUT = 2000
VOCAB = 30_000
EOS = VOCAB  # the runner emits smaller ones only


@dataclass(frozen=True)
class Row:
    """One measured figure and what it should be."""

    case: str
    value: float
    target: float
    at_least: bool
    note: str

    @property
    def met(self) -> bool:
        """Say whether the target is met."""
        return self.value >= self.target if self.at_least else self.value <= self.target


class Engine:
    """A core without sockets and model, on a clock of its own."""

    def __init__(
        self, num_blocks: int, *, tenants: int, groups: tuple[ShareGroup, ...] = (), budget: int = 2048
    ) -> None:
        self.now = 1000.0
        shape = CacheShape(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            block_bytes=1,
            max_rows=512,
            max_columns=CONTEXT // BLOCK_SIZE,
        )
        limits = Limits(
            vocab_size=VOCAB + 1,
            max_context=CONTEXT,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            block_bytes=1,
        )
        self.memory = KVMemory(shape)
        self.scheduler = Scheduler(
            self.memory, limits, max_batched_tokens=budget, eos_token_ids=(EOS,), clock=lambda: self.now
        )
        self.tenants = [TenantId(f"tenant-{index}") for index in range(tenants)]
        self._runner = FakeRunner(shape, vocab_size=VOCAB)
        self._lengths: dict[SequenceId, int] = {}
        policies = tuple(
            TenantPolicy(
                tenant=tenant,
                weight=1.0,
                kv_soft_bytes=0,
                kv_hard_bytes=num_blocks,
                max_running=512,
                max_queued=100_000,
                max_context_tokens=CONTEXT,
                max_output_tokens=CONTEXT,
                share_groups=tuple(group.name for group in groups),
            )
            for tenant in self.tenants
        )
        update = PolicyUpdate(version=1, epoch=0, snapshot=True, tenants=policies, share_groups=groups)
        self.scheduler.apply(update)

    def submit(self, tenant: int, prompt: list[int], *, num_output: int, max_tokens: int) -> None:
        """Submit a request that ends by itself after `num_output` tokens."""
        number = SequenceId(len(self._lengths) + 1)
        self._lengths[number] = num_output
        name = self.tenants[tenant % len(self.tenants)]
        request = GenerationRequest(
            request_id=RequestId(str(number)),
            tenant=name,
            namespace=name.encode(),
            prompt=prompt,
            sampling=SamplingParams(max_tokens=max_tokens),
            arrived_at=self.now,
        )
        self.scheduler.submit(number, request)

    def step(self) -> bool:
        """Run a step; say whether there was one."""
        plan = self.scheduler.plan()
        if plan is None:
            return False
        result = self._runner.launch(plan).wait()
        sampled = [part for part in plan.sequences if part.sampling is not None]
        tokens = tuple(
            EOS if part.position + 1 >= self._lengths[part.sequence] else token
            for part, token in zip(sampled, result.token_ids, strict=True)
        )
        self.now += 0.02
        self.scheduler.commit(plan, StepResult(token_ids=tokens, seconds=0.02))
        return True

    @property
    def num_in_use(self) -> int:
        """Blocks that requests hold."""
        pool = self.memory.pool
        return pool.num_open + pool.num_sealed

    def num_stored(self) -> int:
        """Return the tokens in them; only without sharing."""
        return sum(sequence.computed for sequence in self.scheduler.roster.running)


def measure_concurrency(seed: int = 1) -> Row:
    """Return how many times as many requests run at once, on average while more are waiting."""
    random = Random(seed)
    engine = Engine(POOL_CONTEXTS * CONTEXT // BLOCK_SIZE, tenants=4)
    requests = load()
    lengths = []
    for number in range(NUM_REQUESTS):
        request = requests[number * len(requests) // NUM_REQUESTS]
        num_output = max(1, min(MAX_OUTPUT, request.output_tokens))
        num_prompt = max(1, min(CONTEXT - MAX_OUTPUT, request.input_tokens * CONTEXT // TRACE_CONTEXT))
        lengths.append(num_prompt + num_output)
        prompt = [random.randrange(VOCAB) for _ in range(num_prompt)]
        engine.submit(number, prompt, num_output=num_output, max_tokens=MAX_OUTPUT)
    running: list[int] = []
    use: list[float] = []
    roster = engine.scheduler.roster
    while engine.step():
        if sum(tenant.num_waiting for tenant in roster.waiting.values()) > 0:
            running.append(len(roster.running))
            use.append(engine.num_in_use / engine.memory.shape.num_blocks)
    engine.scheduler.audit()
    steady = running[len(running) // 10 :]  # without the ramp
    ratio = statistics.mean(steady) / POOL_CONTEXTS
    note = (
        f"{statistics.mean(steady):.0f} at once against {POOL_CONTEXTS}; mean length {statistics.mean(lengths):.0f};"
        f" {statistics.mean(use):.0%} of the pool in use; {roster.num_preemptions} preemptions"
    )
    return Row("requests at once ÷ static allocation", ratio, 3.0, True, note)


def measure_sharing(*, grouped: bool) -> Row:
    """Return the blocks that a hundred users of one prefix hold at most, over what they would hold unshared."""
    random = Random(2)
    prefix = [random.randrange(VOCAB) for _ in range(2000)]
    shared = SharedPrefix(group="group", namespace=b"secret of the group", token_ids=tuple(prefix))
    groups = (ShareGroup(name="group", kv_soft_bytes=0, kv_hard_bytes=100_000, prefixes=(shared,)),) if grouped else ()
    engine = Engine(20_000, tenants=100 if grouped else 1, groups=groups)
    for user in range(100):
        question = [random.randrange(VOCAB) for _ in range(20)]
        engine.submit(user, prefix + question, num_output=60, max_tokens=60)
    peak = most = 0
    while engine.step():
        peak = max(peak, engine.num_in_use)
        most = max(most, len(engine.scheduler.roster.running))
    engine.scheduler.audit()
    unshared = 100 * -(-(2000 + 20 + 60) // BLOCK_SIZE)
    who = "100 tenants of a share group" if grouped else "100 users of a tenant"
    note = f"{peak} blocks against {unshared}, {most} at once"
    return Row(f"bytes of {who}, one prefix", peak / unshared, 0.10, False, note)


def measure_waste() -> Row:
    """Return tokens stored over slots allocated, mean over steps, weighted by slots."""
    random = Random(3)
    engine = Engine(20_000, tenants=2)
    for number in range(200):
        num_total = random.randint(1, 4000)
        num_output = max(1, min(num_total - 1, random.randint(1, 200)))
        prompt = [random.randrange(VOCAB) for _ in range(max(1, num_total - num_output))]
        engine.submit(number, prompt, num_output=num_output, max_tokens=num_output)
    stored = allocated = 0
    while engine.step():
        stored += engine.num_stored()
        allocated += engine.num_in_use * BLOCK_SIZE
    engine.scheduler.audit()
    return Row("stored ÷ allocated, 1 to 4,000 tokens", stored / allocated, 0.96, True, f"block of {BLOCK_SIZE}")


def write(rows: Iterable[Row]) -> None:
    """Write the CSV."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("case", "value", "target", "met", "note"))
        writer.writerows((row.case, f"{row.value:.6g}", row.target, row.met, row.note) for row in rows)
    print(f"written: {RESULTS}")


def main() -> None:
    """Measure, print, write."""
    rows = []
    print(f"{'case':48}{'result':>8}{'target':>8}")
    for measure in (
        measure_concurrency,
        lambda: measure_sharing(grouped=False),
        lambda: measure_sharing(grouped=True),
        measure_waste,
    ):
        row = measure()
        rows.append(row)
        sign, verdict = ("≥" if row.at_least else "≤"), ("met" if row.met else "MISSED")
        print(f"{row.case:48}{row.value:>8.3f}{sign + f'{row.target:g}':>8}  {verdict:7}{row.note}", flush=True)
    write(rows)


if __name__ == "__main__":
    main()
