"""The Triton kernels and the engine on a GPU, in under five minutes: `python -m bench.gpu`.

    1  correctness of every kernel in bf16 and fp32 against a float64 oracle, in several processes
    2  speed of every kernel, beside the copy bandwidth and the product that are measured in the same run
    3  the engine's decode and prefill at the shapes of Llama-3-8B, with random weights, by CUDA graphs and without

Needs only torch, triton, transformers, numpy, grpcio, protobuf, hypothesis and pytest beside this repository. Exit
status 1: a kernel is wrong; 2: there is no GPU. `TRITON_INTERPRET=1 python -m bench.gpu --tiny` walks through all of it
on tiny shapes without one: its findings count, its speeds mean nothing.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from bench.gpu_correct import Finding
from bench.gpu_engine import agree, engine_rows
from bench.gpu_limits import device, measure_limits
from bench.gpu_speed import decode_rows, memory_rows, prefill_rows
from bench.report import Row, show, write
from kernels.ops import select_backend

SHARES = 8  # processes of part 1
SECONDS = 285.0  # after which no further case is begun
NO_GPU = 2
WRONG = 1


class Run:
    """The rows so far, in the time that there is."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds
        self.rows: list[Row] = []
        self.whole = True

    def elapsed(self) -> float:
        """Return seconds since the start."""
        return time.monotonic() - self._began

    def part(self, title: str, beside: str, rows: Iterable[Row]) -> None:
        """Take rows, each measured as it is taken, then show and keep them; a failure ends this part alone."""
        taken = []
        try:
            for row in rows:
                taken.append(row)
                if self.elapsed() > self._seconds:
                    print(f"{title}: stopped, cases are left out", flush=True)
                    break
        except Exception:  # noqa: BLE001  # the machine is lent for minutes: what else there is to learn is worth it
            self.whole = False
            print(f"{title} failed after {len(taken)} cases:\n{traceback.format_exc()}", flush=True)
        if taken:
            show(title, taken, beside=beside)
            self.rows += taken
            write("gpu", self.rows)
        print(f"until {self.elapsed():.0f} s", flush=True)


def check(*, tiny: bool, shares: int) -> list[Finding]:
    """Run part 1 in processes beside each other, as most of it is compiling."""
    command = [sys.executable, "-m", "bench.gpu_correct", *(["--tiny"] if tiny else [])]
    processes = [
        subprocess.Popen([*command, "--share", f"{share}/{shares}"], stdout=subprocess.PIPE, text=True)
        for share in range(shares)
    ]
    found: list[Finding] = []
    for share, process in enumerate(processes):
        told, _ = process.communicate()
        found += [Finding(**json.loads(line)) for line in told.splitlines()]
        if process.returncode:
            found.append(Finding(f"share {share}", "", float("nan"), f"the process ended with {process.returncode}"))
    return found


def report(findings: Sequence[Finding]) -> bool:
    """Print what is wrong and the worst of what is right, write all; return whether all is right."""
    right = [finding for finding in findings if finding.right]
    wrong = [finding for finding in findings if not finding.right]
    print(f"correctness: {len(right)} of {len(findings)} cases within their tolerance")
    for finding in sorted(right, key=lambda one: -one.off)[:5]:
        print(f"  {finding.off:.3f} of its tolerance: {finding.case}, {finding.dtype}")
    for finding in wrong:
        print(f"  WRONG, {finding.off:.3g} tolerances: {finding.case}, {finding.dtype} {finding.problem}")
    rows = [
        Row(
            case=f"{one.case}, {one.dtype}", ours=one.off, unit="tolerances", target=1, at_least=False, note=one.problem
        )
        for one in findings
    ]
    write("gpu-correctness", rows)
    return not wrong and bool(right)


def main() -> int:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tiny", action="store_true", help="interpreted, on the CPU: TRITON_INTERPRET=1")
    parser.add_argument("--repeats", type=int, default=3, help="of the engine's cases")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after which no further case is begun")
    parser.add_argument("--shares", type=int, default=SHARES, help="processes that check")
    options = parser.parse_args()
    tiny = options.tiny
    if not tiny and not torch.cuda.is_available():
        print("bench.gpu: torch sees no CUDA device here, so nothing was measured", file=sys.stderr)
        return NO_GPU
    if tiny and os.environ.get("TRITON_INTERPRET") != "1":
        print("bench.gpu: --tiny runs in Triton's interpreter: set TRITON_INTERPRET=1", file=sys.stderr)
        return NO_GPU
    run = Run(options.seconds)
    print(f"{'interpreter' if tiny else torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    findings = check(tiny=tiny, shares=1 if tiny else options.shares)
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as name:
        findings += runner_findings(Path(name), tiny=tiny)
        right = report(findings)
        print(f"until {run.elapsed():.0f} s", flush=True)
        with torch.inference_mode():
            limits = measure_limits(tiny=tiny)
            print(f"limits: copy {limits.copy / 1e9:,.0f} GB/s, bf16 product {limits.flops / 1e12:,.0f} Tflop/s")
            ops = select_backend("triton", device=device(tiny=tiny), dtype=torch.float32 if tiny else torch.bfloat16)
            run.part("Decode attention", "copy", decode_rows(ops, limits, tiny=tiny))
            run.part("Prefill attention", "torch SDPA", prefill_rows(ops, tiny=tiny))
            run.part("Memory-bound kernels", "copy", memory_rows(ops, limits, tiny=tiny))
        for graphs in (True, False):
            title = f"Engine, Llama-3-8B shapes{'' if graphs else ', kernel by kernel'}"
            rows = engine_rows(limits, Path(name), tiny=tiny, repeats=options.repeats, graphs=graphs)
            run.part(title, "limit", rows)
            del rows  # a part that ran out of time holds its model
            free()
    print(f"took {run.elapsed():.0f} s")
    return 0 if right and run.whole else WRONG


def runner_findings(scratch: Path, *, tiny: bool) -> Iterator[Finding]:
    """Check the runner, see `agree`; a failure to run is a finding."""
    try:
        yield from agree(scratch, tiny=tiny)
    except Exception as error:  # noqa: BLE001  # as in `Run.part`
        traceback.print_exc()
        yield Finding("runner", "float32", float("nan"), f"{type(error).__name__}: {error}"[:300])
    free()


def free() -> None:
    """Give the GPU back what a model has left behind: the next one needs it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
