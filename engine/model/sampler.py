"""Choose the next token of each sequence: greedy, or by temperature, top-k, top-p and min-p.

A sample depends on its own logits, parameters, `random_key` and `position` alone, never on its batch mates: one uniform
number comes from hashing (key, position), and inverts the distribution's cumulative sum in the order of token ids.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from engine.model.shaping import Send, ban, shape, shaped
from engine.request import SamplingParams
from engine.step import SequenceStep
from kernels.ops import Ops

_MASK = (1 << 64) - 1
_GREEDY = SamplingParams(temperature=0.0)
_NO_FLOOR = -math.inf
_BEST = (0.0, 0.0, 1.0, 0.0, _NO_FLOOR)


def sample(logits: torch.Tensor, parts: Sequence[SequenceStep], ops: Ops, send: Send) -> torch.Tensor:
    """Return one token id for each row of `logits` `[N, vocab]` as int64 `[N]`; `parts` are the rows' sequences.

    Rows that few sequences want changed before the choice are chosen from copies, or are overwritten where nobody reads
    them afterwards, see `shaping`.
    """
    banned, rows = shaped(parts)
    if banned:
        ban(logits, parts, banned, ops, send)
    if not rows:
        return _choose(logits, parts, ops, send)
    there, own = shape(logits, parts, rows, ops, send)
    chosen = _choose(own, [parts[row] for row in rows], ops, send)
    if len(rows) == len(parts):
        return chosen
    others = list(parts)
    for row in rows:
        others[row] = parts[row]._replace(sampling=_GREEDY)  # what costs least: it is not looked at
    return _choose(logits, others, ops, send).index_copy_(0, there, chosen)


def uniform(key: int, position: int) -> float:
    """Return the number in [0, 1) at `position` of the random stream `key`. Source: SplitMix64 as a counter hash."""
    return (_mix(_mix(key) ^ position) >> 11) * 2.0**-53


def _choose(logits: torch.Tensor, parts: Sequence[SequenceStep], ops: Ops, send: Send) -> torch.Tensor:
    for part in parts:
        if part.sampling is not None and part.sampling.temperature > 0:
            break
    else:
        return ops.argmax(logits)
    return ops.sample(logits, *send(np.array([_how(part) for part in parts], dtype=np.float64)))


def _how(part: SequenceStep) -> tuple[float, ...]:
    """Return a row of what `Ops.sample` takes."""
    sampling = part.sampling
    if sampling is None or sampling.temperature <= 0:
        return _BEST
    floor = math.log(sampling.min_p) if sampling.min_p else _NO_FLOOR
    return sampling.temperature, sampling.top_k, sampling.top_p, uniform(part.random_key, part.position), floor


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
