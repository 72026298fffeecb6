"""`python -m engine.train` on a worker's own ring file, from what was asked to what a core takes up."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from engine.memory.eviction.guard import Foresight
from engine.replay.story import TraceProblem
from engine.trace.records import CoreStarted, Ended, Machine, Started, Submitted, encode
from engine.trace.ring import FILE_NAME, RingWriter
from engine.train.asked import Ask, from_mooncake, from_worker
from engine.train.published import LOCK_FILE, METRICS_FILE, MODEL_FILE, ModelWatch
from tests.engine.train.habits import short_ones_return

MACHINE = Machine(num_blocks=256, block_size=16, block_bytes=64, max_rows=8, max_context=4096, max_batched_tokens=64)
START = 1.7e9


def keep(path: Path, asks: Sequence[Ask], *, num_head: int = 0) -> None:
    """Write a ring file of what was asked, as a core does."""
    ring = RingWriter(path, 8 << 20)
    records = []
    for number, ask in enumerate(asks):
        at, count = START + ask.at, len(ask.blocks)
        names = np.array([block + 1 for block in ask.blocks], "<u8").tobytes()
        records.append(Submitted(number, at, "minnow", "standard", 16 * count + 1, 16, 1, 0.0))
        records.append(Started(number, at + 0.1, names, "house" if num_head else "", num_head))
        records.append(Ended(number, at + 1, 0, "stop", 16, count, np.array([10**9 + number], "<u8").tobytes()))
    ring.append([encode(record) for record in records], encode(CoreStarted(1, START, MACHINE)))
    ring.close()


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    """Train in a process of its own; return the exit status and what it told."""
    done = subprocess.run(
        [sys.executable, "-m", "engine.train", "--state-dir", str(folder), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "ENGINE_REUSE_MODEL": ""},
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {"said": done.stderr}


def test_a_worker_trains_from_its_own_trace_and_its_core_takes_the_model_up(tmp_path: Path) -> None:
    """A habit that the hazard table cannot tell is learned from the ring file, published, and loaded by a core's watch.

    Where the table was as good, nothing is published, and the measures say so: both are right.
    """
    keep(tmp_path / FILE_NAME, short_ones_return(Random(), 700))
    status, told = run(tmp_path, "--seconds", "120")
    assert json.loads((tmp_path / METRICS_FILE).read_text()) == told
    assert told["prompts"] > 700  # type: ignore[operator]
    assert (status == 0) == told["published"] == (tmp_path / MODEL_FILE).exists()
    assert status == 0 or (status == 3 and told["reason"])
    foresight = Foresight()
    ModelWatch(tmp_path / MODEL_FILE, MACHINE.block_size, foresight).close()
    assert (foresight.model is not None) == told["published"]


def test_what_was_asked_is_read_as_the_orders_saw_it(tmp_path: Path) -> None:
    """Prompts by time, in their tenant's account and their share group's, with the blocks of their answers."""
    asks = [Ask(1.0, "", [1, 2, 3], []), Ask(5.0, "", [1, 2, 4], [])]
    keep(tmp_path / FILE_NAME, asks, num_head=2)
    asked = from_worker(tmp_path / FILE_NAME)
    assert asked.block_size == 16
    assert [ask.account for ask in asked.asks] == ["group house", "tenant minnow"] * 2
    assert [len(ask.blocks) for ask in asked.asks] == [2, 1, 2, 1]
    assert [len(ask.answers) for ask in asked.asks] == [0, 1, 0, 1]
    assert asked.asks[0].blocks == asked.asks[2].blocks
    assert asked.asks[1].blocks != asked.asks[3].blocks
    assert asked.seconds == pytest.approx(4.0)


def test_one_at_a_time(tmp_path: Path) -> None:
    """While another training has the folder's lock, a second one says so and leaves."""
    import fcntl

    with (tmp_path / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, told = run(tmp_path)
    assert status == 2
    assert "another training" in str(told["reason"])


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    """A folder that is not there, a time that makes no sense: exit status 2 and the argument."""
    assert run(tmp_path / "none")[0] == 2
    status, told = run(tmp_path, "--seconds", "0")
    assert status == 2
    assert "--seconds" in str(told["said"])


def test_a_trace_in_another_format_is_refused_with_its_reason(tmp_path: Path) -> None:
    """Lines that are no requests: the file and the reason."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 5}\n')
    with pytest.raises(TraceProblem, match="hash_ids"):
        from_mooncake(path)
    path.write_text('{"timestamp": 5000, "hash_ids": [3, 4]}\n{"timestamp": 6000, "hash_ids": []}\n')
    assert from_mooncake(path).asks == [Ask(5.0, "tenant", [3, 4], [])]
