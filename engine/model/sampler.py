"""Choose the next token of each sequence: greedy, or by temperature, top-k and top-p.

A sample depends on its own logits, parameters, `random_key` and `position` alone, never on its batch mates: one uniform
number comes from hashing (key, position), and inverts the distribution's cumulative sum in a fixed order.
"""

import struct
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from engine.request import SamplingParams
from engine.step import SequenceStep

_MASK = (1 << 64) - 1
_NUCLEUS = -1  # the width of a row that top_p alone bounds
_BINS = 0x3F81  # upper halves of float32 numbers in [0, 1]
_BLOCK = 256  # tokens summed at once
_COLDEST = 1e-6  # below this temperature every draw is the best token, and the division would overflow
_CPU_ROWS = 8  # drawn at once on the CPU: what is computed of a few stays in the cache and in memory already mapped


def sample(logits: torch.Tensor, parts: Sequence[SequenceStep]) -> torch.Tensor:
    """Return one token id for each row of `logits` `[N, vocab]` as int64 `[N]`; `parts` are the rows' sequences."""
    wide = logits.float()
    chosen = _best(wide)
    groups: dict[int, list[int]] = {}
    for index, part in enumerate(parts):
        if part.sampling is not None and part.sampling.temperature > 0:
            groups.setdefault(_width(part.sampling, wide.shape[-1]), []).append(index)
    at_once = _CPU_ROWS if logits.device.type == "cpu" else len(parts)
    for width, indices in groups.items():
        for start in range(0, len(indices), at_once):
            some = indices[start : start + at_once]
            rows = torch.tensor(some, device=logits.device)
            chosen[rows] = _draw(wide[rows], [parts[index] for index in some], width)
    return chosen


def _best(logits: torch.Tensor) -> torch.Tensor:
    """Return the first best token of each row. On the CPU numpy finds it seventy times faster than torch 2.13."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def uniform(key: int, position: int) -> float:
    """Return the number in [0, 1) at `position` of the random stream `key`. Source: SplitMix64 as a counter hash."""
    return (_mix(_mix(key & _MASK) ^ (position & _MASK)) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _width(sampling: SamplingParams, vocab: int) -> int:
    """Return how many best tokens a row may draw: its top_k, `_NUCLEUS` for a top_p alone, 0 for all of the vocabulary.

    It depends on the row's parameters alone, so that equal logits keep their order whatever else is in the batch.
    """
    if 0 < sampling.top_k < vocab:
        return sampling.top_k
    return _NUCLEUS if sampling.top_p < 1.0 else 0


def _draw(logits: torch.Tensor, parts: Sequence[SequenceStep], width: int) -> torch.Tensor:
    """Sample rows of one width. `logits` is overwritten."""
    params = [part.sampling for part in parts if part.sampling is not None]
    temperatures = _column([max(one.temperature, _COLDEST) for one in params], logits).float()
    weights = logits.sub_(logits.amax(-1, keepdim=True)).div_(temperatures).exp_().nan_to_num_(0.0)
    numbers = _column([uniform(part.random_key, part.position) for part in parts], logits)
    if not width:
        return _pick(weights, numbers)
    top_p = _column([one.top_p for one in params], logits)
    if width == _NUCLEUS:
        return _pick(_within_top_p(weights, top_p), numbers)
    best, tokens = weights.topk(width, -1)
    kept = _nucleus(best, top_p * best.sum(-1, keepdim=True))
    return tokens.gather(-1, _pick(kept, numbers)[:, None])[:, 0]


def _within_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Put zeros outside each row's nucleus into `weights` `[N, vocab]`, which lie in [0, 1], and return them.

    Sorting the vocabulary would cost four milliseconds a row where the distribution is flat. Instead weights fall into
    bins by their upper sixteen bits; the bins' masses tell where `top_p` is reached, and only that bin is sorted.
    """
    bins = weights.view(torch.int32) >> 16
    offsets = torch.arange(0, weights.shape[0] * _BINS, _BINS, dtype=torch.int32, device=weights.device)[:, None]
    flat = (bins + offsets).flatten()
    mass = torch.bincount(flat, weights=weights.flatten(), minlength=weights.shape[0] * _BINS)
    falling = mass.view(-1, _BINS).flip(-1).cumsum(-1, dtype=torch.float64)  # of each bin and those over it
    needed = top_p * falling[:, -1:]
    over = torch.searchsorted(falling, needed)  # bins that are in as a whole
    left = needed - F.pad(falling, (1, 0)).gather(-1, over)
    for row, cut in enumerate((_BINS - 1 - over).flatten().tolist()):
        tokens = _indices(bins[row] == cut)
        best, order = weights[row, tokens].sort(descending=True, stable=True)
        torch.threshold_(weights[row], _highest(cut), 0.0)
        weights[row, tokens[order]] = _nucleus(best[None], left[row : row + 1])[0]
    return weights


def _highest(number: int) -> float:
    """Return the greatest weight of a bin."""
    (weight,) = struct.unpack("<f", struct.pack("<I", (number + 1 << 16) - 1))
    return float(weight)


def _indices(mask: torch.Tensor) -> torch.Tensor:
    """Return where a mask is true, in order: `[M]` int64. On the CPU numpy finds them five times faster than torch."""
    if mask.device.type == "cpu":
        return torch.from_numpy(mask.numpy().nonzero()[0])
    return mask.nonzero()[:, 0]


def _nucleus(best: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Drop, from weights in falling order, what comes after `mass` is reached; the best token always stays."""
    before = best.cumsum(-1, dtype=torch.float64) - best
    kept = before < mass
    kept[:, 0] = True
    return best * kept


def _pick(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return the first index whose cumulative weight exceeds the number's share of the total: `[N]`.

    Two levels, blocks and then one block, since a cumulative sum over a whole vocabulary would cost more than the rest
    of the sampling.
    """
    vocab = weights.shape[-1]
    blocks = F.pad(weights, (0, -vocab % _BLOCK)).view(weights.shape[0], -1, _BLOCK)
    sums = blocks.sum(-1).double()
    mass = sums.cumsum(-1)
    target = numbers * mass[:, -1:]
    block = torch.searchsorted(mass, target, right=True).clamp(max=sums.shape[-1] - 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    left = target - (mass - sums).gather(-1, block)
    left = left.minimum(inside[:, -1:] * (1.0 - 2.0**-40))  # the two sums round differently
    at = torch.searchsorted(inside, left, right=True)
    return (block * _BLOCK + at).clamp(max=vocab - 1)[:, 0]


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
