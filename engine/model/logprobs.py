"""Log-probabilities of sampled tokens and of the likeliest ones, of the model's own distribution.

They depend on a row's logits alone, never on its batch mates, and equal logits are ranked by token id. One tensor
carries them to the host together with the tokens, so that a step waits for the device once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.step import SequenceStep, TokenLogprobs

_BLOCK = 64  # tokens of a block in the search for the best
_LOWER = 0x7FFF_FFFF


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


def with_logprobs(tokens: torch.Tensor, logits: torch.Tensor, rows: Sequence[Asking]) -> torch.Tensor:
    """Put log-probabilities behind the sampled tokens.

    Args:
        tokens: `[N]` int64, sampled.
        logits: `[N, vocab]` float32, before temperature, top-k and top-p.
        rows: which of the N ask, at least one.

    Returns:
        Float64 `[N + M * (1 + 2 * K)]`, for `read`: the tokens, then for each of the M rows in `rows` the chosen
        token's log-probability, the K best token ids and their log-probabilities. Float64 holds ids and float32 alike.
    """
    picked = torch.tensor([one.row for one in rows], device=logits.device)
    own = logits if len(rows) == logits.shape[0] else logits[picked]
    logprobs = own.log_softmax(-1)
    best = _best(own, _width(rows, logits.shape[-1]))
    columns = (logprobs.gather(-1, tokens[picked][:, None]), best, logprobs.gather(-1, best))
    return torch.cat([tokens.double(), torch.cat([column.double() for column in columns], -1).flatten()])


def read(
    values: Sequence[float], rows: Sequence[Asking], num_tokens: int
) -> tuple[tuple[int, ...], tuple[TokenLogprobs | None, ...]]:
    """Return the tokens and each one's log-probabilities, from what `with_logprobs` has laid out."""
    found: list[TokenLogprobs | None] = [None] * num_tokens
    size = (len(values) - num_tokens) // len(rows)
    width = (size - 1) // 2
    for start, (row, num_best) in zip(range(num_tokens, len(values), size), rows, strict=True):
        first, count = start + 1, min(num_best, width)
        ids, logprobs = values[first : first + count], values[first + width : first + width + count]
        found[row] = TokenLogprobs(values[start], tuple(zip(map(int, ids), logprobs, strict=True)))
    return tuple(map(int, values[:num_tokens])), tuple(found)


def _width(rows: Sequence[Asking], vocab: int) -> int:
    return min(max(one.num_best for one in rows), vocab)


def _best(logits: torch.Tensor, width: int) -> torch.Tensor:
    """Return the ids of the `width` best tokens of each row, best first, equal ones by id: `[N, width]` int64.

    `topk` over a vocabulary leaves the order of equal logits, and which of them it takes, to chance; bfloat16 has many.
    Keys that hold the id too are distinct, but cost more than all else when made for every token. So blocks of tokens
    compete by their best one first: the `width` best tokens lie in the `width` best blocks, where equal blocks count in
    the order of their ids as well.
    """
    if not width:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    missing = -logits.shape[-1] % _BLOCK
    whole = F.pad(logits, (0, missing), value=-torch.inf) if missing else logits  # a pad of nothing would copy all
    blocks = whole.reshape(logits.shape[0], -1, _BLOCK)
    ids = torch.arange(blocks.shape[1], device=logits.device)
    chosen = _first(blocks.amax(-1), ids.expand(blocks.shape[:2]), min(width, blocks.shape[1]))
    tokens = chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)
    values = blocks.gather(1, chosen[:, :, None].expand(-1, -1, _BLOCK))
    return _first(values.flatten(1), tokens.flatten(1), width)


def _first(values: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ids of the `count` greatest float32 `values` `[N, M]`, the smaller id first where they are equal."""
    bits = (values + 0.0).view(torch.int32)  # one zero, not two
    ordered = bits ^ ((bits >> 31) & _LOWER)  # as integers, in the order of the floats
    keys = (ordered.long() << 32) | (_LOWER - ids)
    return _LOWER - (keys.topk(count, -1).values & _LOWER)
