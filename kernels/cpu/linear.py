"""Linear layers over weights that oneDNN has reordered once. The only file that touches torch's private mkldnn ops.

Measured on two AVX512-BF16 cores with the weights of SmolLM2-135M, all linears of a step, `F.linear` -> packed:
8.5 -> 4.3 ms for 1 row, 9.2 -> 6.2 ms for 8, 16.9 -> 13.1 ms for 32.
"""

import logging
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from kernels.ops import Linear
from kernels.reference.ops import PlainLinear

_log = logging.getLogger("tollgate.kernels")
_ROWS = 8  # the batch that the blocked layout is chosen for


class PackedLinear(Linear):
    """A weight in oneDNN's blocked layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
        self._bias = bias
        self._multiply: Any = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ weight.T + bias`."""
        if not x.shape[0]:
            return x.new_empty((0, self.out_features))
        out: torch.Tensor = self._multiply(x, self._weight, self._bias, "none", [], "")
        return out


def choose_linear(dtype: torch.dtype) -> type[PackedLinear] | type[PlainLinear]:
    """Try the packed form on a small product and return it if it is right, else the plain one, saying so."""
    weight = torch.arange(32 * 32, dtype=torch.float32).view(32, 32).remainder(7).to(dtype)
    bias = torch.arange(32, dtype=torch.float32).to(dtype)
    x = torch.eye(32).to(dtype)
    try:
        right = torch.equal(PackedLinear(weight, bias)(x), F.linear(x, weight, bias))
        reason = "it gives wrong results"
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        right, reason = False, str(error).splitlines()[0]
    if right:
        return PackedLinear
    _log.warning("kernels: plain linears, slower than packed ones: oneDNN's packing cannot serve %s: %s", dtype, reason)
    return PlainLinear
