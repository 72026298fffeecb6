"""Train the reuse predictor of a worker from its own trace, and publish the model where its core takes it up.

    python -m engine.train [--state-dir FOLDER] [--model FILE] [--trace FILE] [--seconds 60]

One at a time for each state folder, on one thread, after everybody else. Prints one JSON object: how it went. Exit
status: 0 published, 3 nothing published (the object says why), 2 wrong arguments or another one at work.
"""

import argparse
import fcntl
import json
import os
import resource
import sys
import time
from pathlib import Path

import msgspec

from engine.process import give_way
from engine.train.published import LOCK_FILE, METRICS_FILE, MODEL_FILE, publish

PUBLISHED, REFUSED, NOT_PUBLISHED = 0, 2, 3
MOST_SECONDS = 3600.0
MEMORY_BYTES = 4 << 30  # of address space beyond what torch maps when it is imported
_NICENESS = 18  # one above the lowest, which on a busy machine may never come to run at all
_GRACE = 2.0  # times the seconds asked for, in processor time, after which the kernel ends it


def main(argv: list[str] | None = None) -> int:
    """Train once; return the exit status."""
    options = _options(argv)
    give_way(_NICENESS)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch
    lock = _lock(options.state_dir)
    if lock is None:
        return REFUSED
    try:
        return _train(options, time.process_time() + options.seconds)
    finally:
        os.close(lock)


def _options(argv: list[str] | None) -> argparse.Namespace:
    env = os.environ
    parser = argparse.ArgumentParser(prog="python -m engine.train", description="Train a worker's reuse predictor.")
    parser.add_argument("--state-dir", type=Path, default=Path(env.get("ENGINE_STATE_DIR") or "var/engine"))
    parser.add_argument("--model", type=Path, default=Path(env.get("ENGINE_REUSE_MODEL") or ""))
    parser.add_argument("--trace", type=Path, help="a trace in Mooncake's format, instead of the worker's own")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a processor that it may take")
    options = parser.parse_args(argv)
    if not 1 <= options.seconds <= MOST_SECONDS:
        parser.error(f"--seconds {options.seconds:g}: from 1 to {MOST_SECONDS:g}")
    if not options.state_dir.is_dir():
        parser.error(f"--state-dir {options.state_dir}: no such folder; is it the worker's ENGINE_STATE_DIR?")
    if options.model == Path():
        options.model = options.state_dir / MODEL_FILE
    return options


def _lock(state_dir: Path) -> int | None:
    """Return the lock on training, None if another one has it; it goes with the process."""
    file = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        print(json.dumps({"published": False, "reason": "another training of this worker is at work"}))
        return None
    return file


def _train(options: argparse.Namespace, deadline: float) -> int:
    import torch  # after it has stepped back: to import is half of what a small training costs

    from engine.memory.eviction.model import write
    from engine.replay.story import TraceProblem
    from engine.trace.ring import FILE_NAME
    from engine.train.asked import from_mooncake, from_worker
    from engine.train.training import Metrics, train

    torch.set_num_threads(1)
    _bound(options.seconds)
    try:
        asked = from_worker(options.state_dir / FILE_NAME) if options.trace is None else from_mooncake(options.trace)
    except TraceProblem as problem:
        weights, metrics = None, Metrics(reason=str(problem), at=time.time())
    else:
        weights, metrics = train(asked, deadline)
    metrics.published = weights is not None
    if weights is not None:
        publish(options.model, write(weights))
    told = msgspec.json.encode(metrics)
    publish(options.state_dir / METRICS_FILE, told)
    print(told.decode())
    return PUBLISHED if metrics.published else NOT_PUBLISHED


def _bound(seconds: float) -> None:
    """Have the kernel end a training that runs wild: by time, and by memory beyond what is mapped by now."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, mapped + MEMORY_BYTES))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = int(used + _GRACE * seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))


if __name__ == "__main__":
    sys.exit(main())
