"""Run the benches one after the other: `python -m bench [NAME …]`; all of them by default.

Each runs in a process of its own and prints its tables; at the end stands which targets were met and missed. Exit
status 1: a bench failed (a missed target is no failure).
"""

import argparse
import csv
import subprocess
import sys
import time

from bench.report import RESULTS
from bench.trace import PATH as TRACE

# What is measured, quietest needs first: after the kernels nothing depends on what came before.
NAMES = (
    "kernels",
    "engine",
    "grammar",
    "serving",
    "noisy",
    "live_change",
    "gateway",
    "push",
    "preview",
    "prefix",
    "tiers",
    "memory",
    "density",
    "eviction",
    "gpu",
)
NEEDS_TRACE = ("density", "eviction")
NO_GPU = 2  # exit status of bench.gpu


def run(name: str) -> str:
    """Run one bench and return what became of it."""
    if name in NEEDS_TRACE and not TRACE.exists():
        return "not run: it needs the trace (see bench/trace.py)"
    print(f"\n==== bench.{name}", flush=True)
    began = time.monotonic()
    status = subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
    if name == "gpu" and status == NO_GPU:
        return "not measured: no GPU"
    seconds = f"{time.monotonic() - began:.0f} s"
    return f"done, {seconds}" if status == 0 else f"FAILED with {status}, {seconds}"


def targets(since: float) -> list[dict[str, str]]:
    """Return bench, verdict, case, target and figure of each line with a target in the tables of this run."""
    lines: list[dict[str, str]] = []
    for path in sorted(RESULTS.glob("*.csv")):
        if path.stat().st_mtime < since or path.stem.endswith(".samples") or path.stem == "gpu-correctness":
            continue
        with path.open(newline="") as stream:
            for line in csv.DictReader(stream):
                verdict = line.get("verdict") or ({"True": "met", "False": "missed"}.get(line.get("met", "")) or "")
                if not verdict or not line["target"]:
                    continue
                ratio = line.get("ratio")
                figure = f"{ratio} ×" if ratio else f"{line.get('ours') or line.get('value')} {line.get('unit', '')}"
                lines.append({**line, "bench": path.stem, "verdict": verdict, "figure": figure})
    return lines


def main() -> int:
    """Run what is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    names = parser.parse_args().names or list(NAMES)
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"no such bench: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    since = time.time()
    outcomes = {name: run(name) for name in names}
    print("\n==== targets")
    for line in targets(since):
        print(f"{line['verdict']:7}{line['bench']:26}{line['case']:52}{line['target']:>9}  {line['figure']}")
    print("\n==== benches")
    for name, outcome in outcomes.items():
        print(f"{name:10}{outcome}")
    return 1 if any(outcome.startswith("FAILED") for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
