"""Weights in eight bits: one scale for each output, symmetric, rounded to nearest."""

from typing import Literal, NamedTuple

import torch

WeightDtype = Literal["auto", "int8"]  # auto: the ops' own dtype


class Int8Weight(NamedTuple):
    """Stands for `values * scale[:, None]`."""

    values: torch.Tensor  # [out, in] int8, in -127..127
    scale: torch.Tensor  # [out] float32


def quantise(weight: torch.Tensor) -> Int8Weight:
    """Return the weight `[out, in]` in eight bits; an error of at most half a scale remains.

    A row that is not finite gets a scale that is not, so that what it multiplies shows it, as it does whole.
    """
    wide = weight.float()
    largest = wide.abs().amax(1)
    scale = torch.where(largest == 0, torch.ones_like(largest), largest / 127)
    return Int8Weight((wide / scale[:, None]).round_().to(torch.int8), scale)
