"""`top_k` of logits by torch's own kernels.

torch's `topk` leaves the order of equal logits, and which of them it takes, to chance; bfloat16 has many. Keys that
hold the token too are distinct, but cost more than all else when made for every token. So blocks of tokens compete by
their best one first: the `k` best tokens lie in the `k` best blocks, equal ones in the order of tokens too.
"""

import torch
import torch.nn.functional as F  # noqa: N812

_BLOCK = 64  # tokens
_LOWER = 0x7FFF_FFFF


def top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` best logits of each row, falling, and their tokens, equal ones by token: `[N, k]` each."""
    tokens = _best(logits, k)
    return logits.gather(-1, tokens).float(), tokens


def _best(logits: torch.Tensor, k: int) -> torch.Tensor:
    if not k:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    missing = -logits.shape[-1] % _BLOCK
    whole = F.pad(logits, (0, missing), value=-torch.inf) if missing else logits  # a pad of nothing would copy all
    blocks = whole.reshape(logits.shape[0], -1, _BLOCK)
    ids = torch.arange(blocks.shape[1], device=logits.device)
    chosen = _first(blocks.amax(-1), ids.expand(blocks.shape[:2]), min(k, blocks.shape[1]))
    tokens = chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)
    values = blocks.gather(1, chosen[:, :, None].expand(-1, -1, _BLOCK))
    return _first(values.flatten(1), tokens.flatten(1), k)


def _first(values: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ids of the `count` greatest `values` `[N, M]`, the smaller id first where they are equal."""
    one_nan = torch.where(values.isnan(), torch.nan, values.float() + 0.0)  # and one zero
    bits = one_nan.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & _LOWER)  # as integers, in the order of the floats
    keys = (ordered.long() << 32) | (_LOWER - ids)
    return _LOWER - (keys.topk(count, -1).values & _LOWER)
