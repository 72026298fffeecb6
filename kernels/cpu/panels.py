"""Linear layers of the C++ library, over weights packed once into panels of 32 outputs; `src/linear.inc` multiplies.

Measured against oneDNN's packed form on one AVX512-BF16 core, the MLP's first layer of SmolLM2-135M, bf16 (int8):
105 -> 91 (46) us for 1 row, 173 -> 115 (70) for 8, 340 -> 243 (243) for 32, 3,687 -> 3,810 (3,845) for 512.
A row's result is the same to the bit whatever other rows there are, which oneDNN's is not.
"""

import ctypes
from enum import IntEnum

import torch
import torch.nn.functional as F  # noqa: N812

from kernels.cpu.library import Level, Library, LinearWeight
from kernels.ops import Linear
from kernels.quantised import quantise

_PANEL = 32  # outputs
_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class Form(IntEnum):
    """What a packed weight holds, as the library's `Form`."""

    BF16_PAIRS = 0
    INT8_PAIRS = 1
    INT8_PLAIN = 2


class PanelLinear(Linear):
    """A weight in panels, bfloat16 or int8."""

    def __init__(
        self, functions: Library, level: Level, weight: torch.Tensor, bias: torch.Tensor | None, *, int8: bool
    ) -> None:
        """Pack `weight` `[out, in]` and `bias` `[out]`, both of the dtype that is computed in.

        Without `int8` the weight is bfloat16, and the level has its dot product.
        """
        self.out_features, self._inputs = weight.shape
        self._dtype, self._level, self._type = weight.dtype, int(level), _TYPES[weight.dtype]
        self._multiply = functions.linear
        scale = None
        if not int8:
            form, packed = Form.BF16_PAIRS, _pairs(weight)
        else:
            values, scale = quantise(weight)
            pairs = weight.dtype == torch.bfloat16 and level is Level.AVX512_BF16
            form, packed = (
                (Form.INT8_PAIRS, _signed_magnitudes(_pairs(values))) if pairs else (Form.INT8_PLAIN, _plain(values))
            )
        self._kept = (packed, scale, bias)  # the struct has only their addresses
        self.weight = ctypes.pointer(
            LinearWeight(
                packed.data_ptr(),
                None if scale is None else scale.data_ptr(),
                None if bias is None else bias.data_ptr(),
                self.out_features,
                self._inputs,
                int(form),
            )
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight and its scales."""
        packed, scale, _ = self._kept
        return packed.nbytes + (0 if scale is None else scale.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ weight.T + bias`."""
        rows = x.shape[0]
        assert x.shape[1] == self._inputs and x.stride(1) == 1 and x.dtype == self._dtype
        out = torch.empty((rows, self.out_features), dtype=self._dtype)
        if rows:
            self._multiply(
                self._level,
                self._type,
                self.weight,
                x.data_ptr(),
                x.stride(0),
                out.data_ptr(),
                rows,
                torch.get_num_threads(),
            )
        return out


def _pairs(weight: torch.Tensor) -> torch.Tensor:
    """Return `[panel, in / 2, 32 outputs, 2]`, zeros where there is no such output or input."""
    outputs, inputs = weight.shape
    whole = F.pad(weight, (0, inputs % 2, 0, -outputs % _PANEL))
    return whole.view(-1, _PANEL, whole.shape[1] // 2, 2).permute(0, 2, 1, 3).contiguous()


def _plain(weight: torch.Tensor) -> torch.Tensor:
    """Return `[panel, in, 32 outputs]`."""
    whole = F.pad(weight, (0, 0, 0, -weight.shape[0] % _PANEL))
    return whole.view(-1, _PANEL, whole.shape[1]).permute(0, 2, 1).contiguous()


def _signed_magnitudes(pairs: torch.Tensor) -> torch.Tensor:
    """Return int8 pairs as a sign and seven bits, in the order that widening by interleaving bytes sorts.

    Of each sixteen bytes the first eight belong to the panel's first sixteen outputs, the last to its second.
    """
    halves = pairs.flatten(2).view(*pairs.shape[:2], 2, 4, 8)  # [.., half of the outputs, lane, byte]
    ordered = halves.transpose(2, 3).contiguous().view(pairs.shape[0], pairs.shape[1], 64)
    return ordered.abs().to(torch.uint8) | ((ordered < 0).to(torch.uint8) << 7)
