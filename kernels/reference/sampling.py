"""Draws and rankings of logits `[N, V]` by sorting whole rows. Nothing here makes the host wait for a device."""

import torch

COLDEST = 1e-6  # below this temperature every draw is the best token, and the division would overflow
_NOTHING = -87.0  # a weight under e to this is none


def top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the head of a stable sort: values and tokens `[N, k]`."""
    values, tokens = logits.float().sort(dim=-1, descending=True, stable=True)
    return values[:, :k], tokens[:, :k]


def sample(logits: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
    """See `Ops.sample`. Weights are summed in float64."""
    wide = logits.float()
    temperature, top_k, top_p, number, floor = how.unsqueeze(-1).unbind(1)  # [N, 1] each
    best = wide.amax(-1, keepdim=True)
    scaled = (wide - best) * temperature.clamp(min=COLDEST).reciprocal().clamp(min=1e-38).float()
    weights = scaled.exp().masked_fill(~(scaled >= _NOTHING), 0.0).double()
    kept = _nucleus(weights, wide, top_k, top_p).masked_fill(scaled < floor.float(), 0.0)
    drawn = _pick(kept, number)
    greedy = (temperature <= 0) | ~best.isfinite()
    return torch.where(greedy, wide.argmax(-1, keepdim=True), drawn)[:, 0]


def mask(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """See `Ops.mask`."""
    bits = words.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=words.device) & 1
    banned = bits.flatten(1)[:, : logits.shape[1]] == 0
    logits.index_copy_(0, rows, logits.index_select(0, rows).masked_fill_(banned, -torch.inf))


def _nucleus(weights: torch.Tensor, logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the weights with zeros where `top_k` and then `top_p` leave a token out."""
    vocab = logits.shape[-1]
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    rank = torch.arange(vocab, device=logits.device)
    falling = weights.gather(-1, order)
    falling = falling.masked_fill((top_k > 0) & (rank >= top_k), 0.0)
    before = falling.cumsum(-1) - falling
    outside = (before >= top_p * falling.sum(-1, keepdim=True)) & (top_p < 1) & (rank > 0)
    return torch.zeros_like(weights).scatter(-1, order, falling.masked_fill(outside, 0.0))


def _pick(weights: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return the first token whose cumulative weight exceeds the number's share: `[N, 1]`."""
    mass = weights.cumsum(-1)
    total = mass[:, -1:].contiguous()
    found = torch.searchsorted(mass, number * total, right=True)
    return found.minimum(torch.searchsorted(mass, total))  # the share of a number near 1 may round up to all
