"""The C++ backend."""

import torch

from kernels.errors import BackendUnavailable
from kernels.reference.ops import ReferenceOps


class CpuOps(ReferenceOps):
    """C++ on the CPU."""

    instructions = ""

    @classmethod
    def load(cls, device: torch.device, dtype: torch.dtype) -> "CpuOps":
        """Build and load the library. Raises BackendUnavailable."""
        raise BackendUnavailable("it is not part of this version yet")
