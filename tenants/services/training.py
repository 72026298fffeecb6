"""Starts the training of a worker's reuse predictor: a child process, so that nothing here ever imports torch.

The trace that it learns from, and the model that the worker takes up, lie in the worker's state folder. So the job runs
where that folder is: in embedded mode beside the worker, else on a machine that mounts it, has the engine installed and
names it in `ENGINE_STATE_DIR`. Elsewhere it does nothing, and says so.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

MOST_MINUTES = 20  # of waiting: at the lowest priorities a busy machine may let it starve
_PUBLISHED, _NOT_PUBLISHED = 0, 3
_SAID = 2000  # characters of what a failed one has said last
_TRACE = "trace"


class Training(NamedTuple):
    """How it went."""

    outcome: str  # published, not_published, skipped, failed
    reason: str = ""  # for an operator
    metrics: Mapping[str, object] = {}


def train(state_dir: str, seconds: int) -> Training:
    """Train the predictor of the worker with this state folder, and wait for it.

    Args:
        state_dir: the folder; empty where there is none.
        seconds: of a processor that it may take; 0: it is not to be trained.
    """
    if reason := _reason_to_skip(state_dir, seconds):
        return Training("skipped", reason)
    command = [sys.executable, "-m", "engine.train", "--state-dir", state_dir, "--seconds", str(seconds)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60.0 * MOST_MINUTES,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Training("failed", f"it took more than {MOST_MINUTES} minutes: the machine is too busy")
    if done.returncode not in (_PUBLISHED, _NOT_PUBLISHED):
        return Training("failed", done.stderr.strip()[-_SAID:] or done.stdout.strip()[-_SAID:])
    metrics = _metrics(done.stdout)
    if done.returncode == _NOT_PUBLISHED:
        return Training("not_published", str(metrics.get("reason", "")), metrics)
    return Training("published", "", metrics)


def _reason_to_skip(folder: str, seconds: int) -> str:
    if not seconds:
        return "TRAIN_SECONDS is 0"
    if not folder:
        return "ENGINE_STATE_DIR is not set here: run this job where a worker's state folder is mounted"
    if not (Path(folder) / _TRACE).is_file():
        return f"ENGINE_STATE_DIR={folder} has no trace: no worker keeps one there (ENGINE_TRACE_BYTES)"
    missing = [name for name in ("engine", "torch") if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed here: use the worker's image for this job" if missing else ""


def _metrics(said: str) -> Mapping[str, object]:
    """Return the object in the last line; an empty one if it is none."""
    try:
        told = json.loads(said.strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
