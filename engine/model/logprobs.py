"""Log-probabilities of sampled tokens and of the likeliest ones, of the model's own distribution.

They depend on a row's logits alone, never on its batch mates, and equal logits are ranked by token id. One tensor
carries them to the host together with the tokens, so that a step waits for the device once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from engine.model.sampler import ToDevice
from engine.step import SequenceStep, TokenLogprobs
from kernels.ops import Ops


class Asking(NamedTuple):
    """A row of the step's logits that log-probabilities are asked for."""

    row: int
    num_best: int  # likeliest tokens to report beside the chosen one


def asking(parts: Sequence[SequenceStep]) -> tuple[Asking, ...]:
    """Return the rows that ask for log-probabilities; `parts` are the sequences of the step's logits."""
    return tuple(
        Asking(row, part.sampling.num_logprobs)
        for row, part in enumerate(parts)
        if part.sampling is not None and part.sampling.num_logprobs >= 0
    )


def with_logprobs(
    tokens: torch.Tensor, logits: torch.Tensor, rows: Sequence[Asking], ops: Ops, to_device: ToDevice
) -> torch.Tensor:
    """Put log-probabilities behind the sampled tokens.

    Args:
        tokens: `[N]` int64, sampled.
        logits: `[N, vocab]`, before temperature, top-k and top-p.
        rows: which of the N ask, at least one.
        ops: who computes.
        to_device: brings an array there.

    Returns:
        Float64 `[N + M * (1 + 2 * K)]`, for `read`: the tokens, then for each of the M rows in `rows` the
        log-probabilities of the chosen token and of the K best, and the K best token ids. Float64 holds ids and float32
        alike.
    """
    own = None if len(rows) == len(tokens) else to_device(np.array([one.row for one in rows], dtype=np.int64))
    best = ops.top_k(logits, min(max(one.num_best for one in rows), logits.shape[-1]), own)[1]
    asked = torch.cat([(tokens if own is None else tokens[own])[:, None], best], -1)
    logprobs = ops.logprobs(logits, asked, own)
    return torch.cat([tokens.double(), torch.cat([logprobs.double(), best.double()], -1).flatten()])


def read(
    values: Sequence[float], rows: Sequence[Asking], num_tokens: int
) -> tuple[tuple[int, ...], tuple[TokenLogprobs | None, ...]]:
    """Return the tokens and each one's log-probabilities, from what `with_logprobs` has laid out."""
    found: list[TokenLogprobs | None] = [None] * num_tokens
    size = (len(values) - num_tokens) // len(rows)
    width = (size - 1) // 2
    for start, (row, num_best) in zip(range(num_tokens, len(values), size), rows, strict=True):
        first, count = start + 1, min(num_best, width)
        logprobs, ids = values[first : first + count], values[first + width : first + width + count]
        found[row] = TokenLogprobs(values[start], tuple(zip(map(int, ids), logprobs, strict=True)))
    return tuple(map(int, values[:num_tokens])), tuple(found)
