"""Choose the next token of each sequence: greedy, or by temperature, top-k and top-p.

A sample depends on its own logits, parameters, `random_key` and `position` alone, never on its batch mates: one uniform
number comes from hashing (key, position), and inverts the distribution's cumulative sum in a fixed order.
"""

from collections.abc import Sequence

import torch

from engine.request import SamplingParams
from engine.step import SequenceStep

_MASK = (1 << 64) - 1
_SHORTLIST = 1024  # tokens that hold top_p of the mass in all but flat distributions


def sample(logits: torch.Tensor, parts: Sequence[SequenceStep]) -> torch.Tensor:
    """Return one token id for each row of `logits` `[N, vocab]` as int64 `[N]`; `parts` are the rows' sequences."""
    chosen = logits.argmax(-1)
    drawn = [index for index, part in enumerate(parts) if part.sampling is not None and part.sampling.temperature > 0]
    if not drawn:
        return chosen
    groups: dict[int, list[int]] = {}
    for index in drawn:
        groups.setdefault(_width(parts[index].sampling, logits.shape[-1]), []).append(index)
    for width, indices in groups.items():
        rows = torch.tensor(indices, device=logits.device)
        chosen[rows] = _draw(logits[rows], [parts[index] for index in indices], width)
    return chosen


def uniform(key: int, position: int) -> float:
    """Return the number in [0, 1) at `position` of the random stream `key`. Source: SplitMix64 as a counter hash."""
    return (_mix(_mix(key & _MASK) ^ (position & _MASK)) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _width(sampling: SamplingParams | None, vocab: int) -> int:
    """Return how many best tokens a row sorts: 0 for none (the whole vocabulary counts, in its own order).

    It depends on the row's parameters alone, so that equal logits keep their order whatever else is in the batch.
    """
    assert sampling is not None
    if 0 < sampling.top_k < vocab:
        return sampling.top_k
    return min(_SHORTLIST, vocab) if sampling.top_p < 1.0 else 0


def _draw(logits: torch.Tensor, parts: Sequence[SequenceStep], width: int) -> torch.Tensor:
    """Sample rows that sort equally many tokens."""
    scaled = _scaled(logits, parts)
    numbers = _column([uniform(part.random_key, part.position) for part in parts], logits)
    if not width:
        return _invert(scaled.softmax(-1).cumsum(-1), numbers)
    top_p = _column([part.sampling.top_p if part.sampling else 1.0 for part in parts], logits)
    values, tokens = scaled.topk(width, -1)
    top_k = _column([part.sampling.top_k if part.sampling else 0 for part in parts], logits)
    total = torch.where(top_k > 0, values.logsumexp(-1, keepdim=True), scaled.logsumexp(-1, keepdim=True))
    mass = (values - total).exp().cumsum(-1)
    short = (mass[:, -1:] < top_p) & (top_k == 0)
    picked = tokens.gather(-1, _invert(_nucleus(mass, top_p), numbers)[:, None])[:, 0]
    for row in short[:, 0].nonzero()[:, 0].tolist():  # a flat distribution: sort all of it
        values, tokens = scaled[row : row + 1].sort(-1, descending=True)
        mass = values.softmax(-1).cumsum(-1)
        at = _invert(_nucleus(mass, top_p[row : row + 1]), numbers[row : row + 1])
        picked[row] = tokens[0, at[0]]
    return picked


def _scaled(logits: torch.Tensor, parts: Sequence[SequenceStep]) -> torch.Tensor:
    """Return `(logits - max) / temperature` in float64: no temperature overflows it, cumulative sums stay exact."""
    temperatures = _column([part.sampling.temperature if part.sampling else 1.0 for part in parts], logits)
    wide = logits.double()
    return (wide - wide.amax(-1, keepdim=True)) / temperatures


def _nucleus(mass: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Cut cumulative mass at the first token that reaches `top_p`; the best token always stays."""
    reached = (mass < top_p).sum(-1, keepdim=True).clamp(max=mass.shape[-1] - 1)
    return mass.minimum(mass.gather(-1, reached))


def _invert(mass: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return the first index whose cumulative mass exceeds the number's share of the total: `[N]`."""
    at = torch.searchsorted(mass, numbers * mass[:, -1:], right=True)
    return at.clamp(max=mass.shape[-1] - 1)[:, 0]


def _column(values: list[float] | list[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
