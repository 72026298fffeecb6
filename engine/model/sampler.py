"""Choose the next token of each sequence: greedy, or by temperature, top-k and top-p.

A sample depends on its own logits, parameters, `random_key` and `position` alone, never on its batch mates: one uniform
number comes from hashing (key, position), and inverts the distribution's cumulative sum in the order of token ids.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from engine.step import SequenceStep
from kernels.ops import Ops

ToDevice = Callable[["np.ndarray[Any, Any]"], torch.Tensor]
"""Brings an array to the device of the step, without a wait."""

_MASK = (1 << 64) - 1


def sample(logits: torch.Tensor, parts: Sequence[SequenceStep], ops: Ops, to_device: ToDevice) -> torch.Tensor:
    """Return one token id for each row of `logits` `[N, vocab]` as int64 `[N]`; `parts` are the rows' sequences."""
    if not any(part.sampling is not None and part.sampling.temperature > 0 for part in parts):
        return ops.argmax(logits)
    return ops.sample(logits, to_device(np.array([_how(part) for part in parts], dtype=np.float64)))


def uniform(key: int, position: int) -> float:
    """Return the number in [0, 1) at `position` of the random stream `key`. Source: SplitMix64 as a counter hash."""
    return (_mix(_mix(key & _MASK) ^ (position & _MASK)) >> 11) * 2.0**-53


def _how(part: SequenceStep) -> tuple[float, ...]:
    """Return a row of what `Ops.sample` takes."""
    sampling = part.sampling
    if sampling is None or sampling.temperature <= 0:
        return 0.0, 0.0, 1.0, 0.0
    return sampling.temperature, sampling.top_k, sampling.top_p, uniform(part.random_key, part.position)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
