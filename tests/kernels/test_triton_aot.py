"""The Triton kernels compiled for A100 and H100 without a GPU, in a process of their own: no interpreter there."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest


@pytest.fixture(scope="module")
def costs() -> list[dict[str, Any]]:
    """What every kernel costs on every generation."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.triton_ops.aot", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(600)
def test_kernels_compile_well(costs: list[dict[str, Any]]) -> None:
    """Every kernel compiles for both generations and spills nothing; attention has two or more KV tiles in flight."""
    assert {cost["capability"] for cost in costs} == {80, 90}
    assert len({cost["kernel"] for cost in costs}) == 13
    assert [cost for cost in costs if cost["spilled"]] == []
    attention = [cost for cost in costs if cost["kernel"] in ("decode_kernel", "prefill_kernel")]
    assert attention
    assert [cost for cost in attention if cost["buffers"] < 2] == []
    assert all(cost["shared"] <= 163 << 10 for cost in costs), "more shared memory than a program may have on an A100"
