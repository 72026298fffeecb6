"""The what-if preview: how long an answer takes, and what keeping the trace costs a step.

    python -m bench.preview [--blocks 100000] [--turns 5]

A trace of a quarter of an hour is written as a core would write it: twenty tenants, three of them whales with prompts
of 2,000 tokens in few beginnings, in a pool that is always full. The helper process answers it as it does for the
front, so it runs on processor time that nobody else wants: figures of a busy machine say more about the machine.

What keeping the trace costs is measured on a scheduler without a model that serves the same requests with and without a
recorder, in turns: processor time of that thread alone. What an answer costs the steps beside it is measured in wall
time, on a process that plans and commits steps of 64 decodes while the helper is idle, and while it is at work.
"""

import argparse
import gc
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random

from bench.report import Row, machine, show, write
from engine.ipc import PolicyTenant
from engine.memory.manager import KVMemory
from engine.policy import PolicyUpdate, TenantPolicy
from engine.replay.frames import HEADER
from engine.replay.task import Report, Task, decode_report, encode
from engine.request import GenerationRequest, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.plan import Scheduler
from engine.scheduler.sizing import Limits
from engine.scheduler.step_time import StepTimeModel
from engine.step import CacheShape, StepPlan, StepResult
from engine.trace import records
from engine.trace.recorder import MeasuredSpeed, Recorder
from engine.trace.ring import RingWriter

SECONDS = 900.0
BLOCK_SIZE, BLOCK_BYTES, NUM_BLOCKS = 16, 368_640, 2_912  # of the default model in a pool of 1 GiB
TENANTS = tuple(f"tenant-{number}" for number in range(20))
WHALES = 3
WEIGHTS = (0.004, 0.0006, 1e-8, 0.00012, 1e-9)  # of a small machine: a step, a decode, context, a chunk token, a pair
MACHINE = records.Machine(
    num_blocks=NUM_BLOCKS,
    block_size=BLOCK_SIZE,
    block_bytes=BLOCK_BYTES,
    max_rows=256,
    max_context=8192,
    max_batched_tokens=512,
)


def write_trace(path: Path, num_blocks: int, now: float) -> None:
    """Write a trace of so many blocks that ends now."""
    chance = Random(1)
    asked: list[tuple[str, int, int]] = []
    left = num_blocks
    while left > 0:
        if chance.random() < 0.25:
            request = (TENANTS[chance.randrange(WHALES)], chance.randint(1500, 2500), chance.randint(50, 400))
        else:
            tenant = TENANTS[chance.randrange(WHALES, len(TENANTS))]
            request = (tenant, chance.randint(30, 300), chance.randint(20, 200))
        asked.append(request)
        left -= -(-(request[1] + request[2]) // BLOCK_SIZE)
    told: list[tuple[float, records.Record]] = []
    for number, (tenant, num_prompt, num_output) in enumerate(asked):
        at = now - SECONDS + SECONDS * number / len(asked)
        first, last = (num_prompt - 1) // BLOCK_SIZE, (num_prompt + num_output) // BLOCK_SIZE
        stem = Random(f"{tenant} {chance.randrange(5)}").randbytes(8 * 20)
        own = Random(number).randbytes(8 * last)
        names = stem[: 8 * min(20, first)] + own[8 * 20 : 8 * first]
        told += [
            (at, records.Submitted(number, at, tenant, "standard", num_prompt, num_output + 50, 1, 0.0)),
            (at + 0.5, records.Started(number, at + 0.5, names, "", 0)),
            (at + 5, records.Ended(number, at + 5, 0, "stop", num_output, first, own[8 * first :])),
        ]
    told.sort(key=lambda pair: pair[0])
    told.append((now, records.Speed(now, WEIGHTS)))
    ring = RingWriter(path, 64 << 20)
    ring.append(
        [records.encode(record) for _, record in told], records.encode(records.CoreStarted(1, now - SECONDS, MACHINE))
    )
    ring.close()


def policies(blocks: int) -> list[PolicyTenant]:
    """Return everybody's limits, with a ceiling of so many blocks for the first whale."""
    return [
        PolicyTenant(
            tenant=tenant,
            weight=1.0,
            kv_soft_bytes=20 * BLOCK_BYTES,
            kv_hard_bytes=(blocks if number == 0 else 1500) * BLOCK_BYTES,
            max_running=32,
            max_queued=1000,
            max_context_tokens=8192,
            max_output_tokens=4096,
            priority="standard",
        )
        for number, tenant in enumerate(TENANTS)
    ]


def make_task(path: Path, now: float) -> Task:
    """Return the question what a fifth of its ceiling would do to the first whale, and to the others."""
    return Task(
        trace=str(path), now=now, seconds=SECONDS, tenants=policies(1500), groups=[], proposed=[policies(300)[0]]
    )


class Helper:
    """The helper process, asked as the front asks it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "engine.replay"]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment)

    def ask(self, task: Task) -> Report:
        """Return its answer."""
        data = encode(task)
        self._socket.sendall(HEADER.pack(len(data)) + data)
        with self._socket.makefile("rb") as stream:
            (length,) = HEADER.unpack(stream.read(HEADER.size))
            return decode_report(stream.read(length))

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait(10)


def answers(path: Path, num_blocks: int, turns: int) -> tuple[list[float], Report]:
    """Ask for the same preview in turns; return the seconds of each answer and the last one."""
    helper = Helper()
    try:
        took: list[float] = []
        for turn in range(-1, turns):
            now = time.time()
            path.unlink(missing_ok=True)
            write_trace(path, num_blocks, now)
            task = make_task(path, now)
            began = time.monotonic()
            report = helper.ask(task)
            if turn >= 0:
                took.append(time.monotonic() - began)
        return took, report
    finally:
        helper.close()


def make_scheduler(num_blocks: int = NUM_BLOCKS) -> Scheduler:
    """Return a scheduler with one tenant."""
    limits = Limits(
        vocab_size=100_000, max_context=200_000, num_blocks=num_blocks, block_size=BLOCK_SIZE, block_bytes=BLOCK_BYTES
    )
    shape = CacheShape(
        num_blocks=num_blocks, block_size=BLOCK_SIZE, block_bytes=BLOCK_BYTES, max_rows=256, max_columns=512
    )
    scheduler = Scheduler(KVMemory(shape), limits, max_batched_tokens=512)
    tenant = TenantPolicy(
        tenant=TenantId("tenant"),
        kv_hard_bytes=num_blocks * BLOCK_BYTES,
        max_running=64,
        max_queued=100_000,
        max_context_tokens=200_000,
        max_output_tokens=200_000,
    )
    scheduler.apply(PolicyUpdate(version=1, epoch=0, snapshot=True, tenants=(tenant,)))
    return scheduler


def submit(scheduler: Scheduler, number: int, prompt: list[int], max_tokens: int) -> None:
    """Submit a request."""
    scheduler.submit(
        SequenceId(number),
        GenerationRequest(
            request_id=RequestId(str(number)),
            tenant=TenantId("tenant"),
            namespace=b"tenant",
            prompt=prompt,
            sampling=SamplingParams(max_tokens=max_tokens),
            arrived_at=time.monotonic(),
        ),
    )


def serve(recorder_at: Path | None, num_requests: int) -> float:
    """Serve requests of 500 tokens and 20 out without a model; return the processor seconds that it took."""
    scheduler = make_scheduler()
    recorder: Recorder | None = None
    if recorder_at is not None:
        recorder = Recorder(RingWriter(recorder_at, 8 << 20), MACHINE, MeasuredSpeed(StepTimeModel()))
        scheduler.roster.watcher = recorder
    prompts = [[Random(number).randrange(100_000) for _ in range(500)] for number in range(num_requests)]
    gc.collect()
    began = time.thread_time()
    for number, prompt in enumerate(prompts):
        submit(scheduler, number, prompt, 20)
    while scheduler.roster.sequences:
        plan = scheduler.plan()
        if plan is not None:
            scheduler.commit(plan, StepResult(token_ids=_tokens(plan), seconds=0.001))
    took = time.thread_time() - began
    if recorder is not None:
        recorder.close()
    return took


def steps(seconds: float) -> list[float]:
    """Plan and commit steps of 64 decodes for so long; return how long each took."""
    scheduler = make_scheduler(100_000)
    for number in range(64):
        submit(scheduler, number, list(range(32)), 20_000)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        plan = scheduler.plan()
        if plan is None or not scheduler.roster.sequences:
            break
        scheduler.commit(plan, StepResult(token_ids=_tokens(plan), seconds=0.001))
        took.append(time.perf_counter() - began)
    return took


def steps_beside(path: Path, num_blocks: int, turns: int) -> tuple[list[float], list[float]]:
    """Return the times of steps while the helper is idle and while it is at work, in turns."""
    helper = Helper()
    now = time.time()
    path.unlink(missing_ok=True)
    write_trace(path, num_blocks, now)
    task = make_task(path, now)
    helper.ask(task)
    alone: list[float] = []
    beside: list[float] = []
    try:
        for _ in range(turns):
            alone += steps(1.0)
            asking = threading.Thread(target=helper.ask, args=(task,))
            asking.start()
            while asking.is_alive():
                beside += steps(0.2)
    finally:
        helper.close()
    return alone, beside


def _tokens(plan: StepPlan) -> tuple[int, ...]:
    return tuple(7 for part in plan.sequences if part.sampling is not None)


def _share(seconds: list[float], share: float) -> float:
    """Return a percentile in microseconds."""
    return 1e6 * sorted(seconds)[int(share * (len(seconds) - 1))]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        took, report = answers(folder / "trace", options.blocks, options.turns)
        without, recorded = [], []
        for _ in range(options.turns):
            without.append(serve(None, options.requests))
            recorded.append(serve(folder / "recorded", options.requests))
        alone, beside = steps_beside(folder / "beside", options.blocks, options.turns)
    share = report.num_events / options.blocks
    each = (min(recorded) - min(without)) / options.requests
    rows = [
        Row(
            case=f"answer of {options.blocks:,} block events",
            ours=statistics.median(took),
            unit="s",
            target=2.0,
            at_least=False,
            note=f"{min(took):.2f} to {max(took):.2f} s; {share:.0%} of them, {report.seconds:.0f} s, were replayed",
        ),
        Row(case="of them replayed", ours=100 * share, unit="%", target=99.0),
        Row(case="recorder, a request of 31 blocks", ours=each * 1e6, unit="µs", target=50.0, at_least=False),
        Row(case="step of 64 decodes beside it", ours=_share(beside, 0.5), unit="µs", beside=_share(alone, 0.5)),
        Row(
            case="the same, 99th percentile",
            ours=_share(beside, 0.99),
            unit="µs",
            beside=_share(alone, 0.99),
            target=1.1,
            at_least=False,
        ),
    ]
    show("Preview", rows, beside="without")
    write("preview", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
