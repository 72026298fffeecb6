"""Every backend that this machine can run, at every instruction set, in both dtypes."""

import pytest
import torch

from kernels.cpu.build import library
from kernels.cpu.library import Level, Library
from kernels.cpu.ops import CpuOps
from kernels.errors import BackendUnavailable
from kernels.ops import Ops
from kernels.reference.ops import ReferenceOps

CPU = torch.device("cpu")


def _levels() -> list[Level]:
    try:
        best = Library(library()).best_level
    except BackendUnavailable:
        return []
    return [level for level in Level if level <= best]


def _backends() -> list[tuple[str, torch.dtype, Level | None]]:
    dtypes = (torch.float32, torch.bfloat16)
    return [(f"cpu-{level.name.lower()}", dtype, level) for level in _levels() for dtype in dtypes] + [
        ("reference", dtype, None) for dtype in dtypes
    ]


@pytest.fixture(params=_backends(), ids=lambda param: f"{param[0]}-{str(param[1])[6:]}")
def ops(request: pytest.FixtureRequest) -> Ops:
    """One backend in one dtype."""
    name, dtype, level = request.param
    return ReferenceOps(CPU, dtype) if name == "reference" else CpuOps.load(CPU, dtype, level)
