"""What bias, penalties, bans and masks make of logits, token by token from the whole history: the oracle of shaping."""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from engine.request import SamplingParams


def is_shaped(sampling: SamplingParams) -> bool:
    """Whether a choice is not one from the model's own logits, sooner or later."""
    return bool(sampling.penalises or sampling.logit_bias or sampling.min_tokens)


def shape(
    logits: np.ndarray,
    sampling: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    stop_ids: Collection[int] = (),
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Return the logits `[vocab]` that the token after `output` is chosen from, in float32.

    `stop_ids` are banned before `min_tokens`; `mask` is as `StepOptions.mask`.
    """
    shaped = logits.astype(np.float32)
    for token, bias in sampling.logit_bias:
        shaped[token] += np.float32(bias)
    if sampling.repetition_penalty != 1.0:
        factor = np.float32(sampling.repetition_penalty)
        for token in {*prompt, *output}:
            shaped[token] = shaped[token] / factor if shaped[token] > 0 else shaped[token] * factor
    for token, count in Counter(output).items():
        shaped[token] -= np.float32(sampling.frequency_penalty * count + sampling.presence_penalty)
    if len(output) < sampling.min_tokens:
        shaped[[token for token in stop_ids if token < len(shaped)]] = -np.inf
    if mask is not None:
        for token in range(len(shaped)):
            if token // 32 >= len(mask) or not int(mask[token // 32]) >> token % 32 & 1:
                shaped[token] = -np.inf
    return shaped


def drawn(logits: np.ndarray, sampling: SamplingParams, number: float) -> int:
    """Return the token that is drawn from shaped logits by a number in [0, 1)."""
    wide = logits.astype(np.float32)
    best = wide.max()
    if sampling.temperature <= 0 or not np.isfinite(best):
        return int(wide.argmax())
    scaled = (wide - best) * np.float32(1 / max(sampling.temperature, 1e-6))
    weights = np.where(scaled >= -87, np.exp(scaled), 0).astype(np.float64)
    order = np.argsort(-wide, kind="stable")
    kept = order[: sampling.top_k or len(order)]
    if sampling.top_p < 1:
        mass = weights[kept].cumsum() - weights[kept]
        kept = kept[(mass < sampling.top_p * weights[kept].sum()) | (np.arange(len(kept)) == 0)]
    if sampling.min_p > 0:
        kept = kept[scaled[kept] >= np.float32(np.log(sampling.min_p))]
    share = np.zeros_like(weights)
    share[kept] = weights[kept]
    total = share.cumsum()
    return int(np.searchsorted(total, number * total[-1], side="right"))
