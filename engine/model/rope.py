"""Rotary tables: cosines and sines of every position, for the plain kind and its scalings."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from engine.model.spec import RopeSpec


def rope_table(rope: RopeSpec, *, head_dim: int, max_positions: int) -> torch.Tensor:
    """Return `[max_positions, head_dim]` float32: `head_dim / 2` cosines, then as many sines.

    Elements that do not turn have the angle zero; `rotary_order` says where a head must have them.
    """
    exponent = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    frequencies, factor = _frequencies(rope, 1.0 / rope.theta**exponent, max_positions)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
    still = (head_dim - rope.dim) // 2
    cosines = F.pad(angles.cos() * factor, (0, still), value=1.0)
    return torch.cat((cosines, F.pad(angles.sin() * factor, (0, still))), -1)


def rotary_order(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Return in which order a head's elements `[head_dim]` must lie for the ops, which turn one half against the other.

    Where only the leading part turns, the rest is dealt out behind both of its halves. Queries and keys in the same
    order have the same scores.
    """
    half, elements = rope.dim // 2, torch.arange(head_dim)
    turning, still = elements[: rope.dim], elements[rope.dim :]
    rest = still.shape[0] // 2
    return torch.cat((turning[:half], still[:rest], turning[half:], still[rest:]))


def _frequencies(rope: RopeSpec, plain: torch.Tensor, max_positions: int) -> tuple[torch.Tensor, float]:
    """Return the turns of one position, `[rope.dim / 2]`, and what cosines and sines are multiplied by."""
    if rope.kind == "longrope":
        return _longrope(rope, plain, max_positions)
    return _KINDS[rope.kind](rope, plain)


def _default(rope: RopeSpec, frequencies: torch.Tensor) -> tuple[torch.Tensor, float]:
    return frequencies, 1.0


def _linear(rope: RopeSpec, frequencies: torch.Tensor) -> tuple[torch.Tensor, float]:
    return frequencies / rope.parameters["factor"], 1.0


def _llama3(rope: RopeSpec, frequencies: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Scale low frequencies by `factor`, keep high ones, blend between. Source: Llama 3.1 reference code."""
    parameters = rope.parameters
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # over the trained context
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (blend + (1 - blend) / parameters["factor"]), 1.0


def _yarn(rope: RopeSpec, frequencies: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Blend interpolated and kept frequencies by their turns in the trained context. Source: YaRN, arXiv 2309.00071."""
    parameters, half = rope.parameters, frequencies.shape[0]
    scale, trained = parameters["factor"], parameters["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return 2 * half * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(parameters.get("beta_fast") or 32), dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = ((torch.arange(half) - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies * ((1 - ramp) + ramp / scale), _yarn_attention_factor(rope)


def _yarn_attention_factor(rope: RopeSpec) -> float:
    parameters = rope.parameters
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(parameters["factor"]) + 1.0 if parameters["factor"] > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return magnitude(parameters["mscale"]) / magnitude(parameters["mscale_all_dim"])
    return magnitude(1.0)


def _longrope(rope: RopeSpec, frequencies: torch.Tensor, max_positions: int) -> tuple[torch.Tensor, float]:
    """Divide by one factor an element: the long ones where longer contexts than the trained are served, or the short.

    One set for all requests, whatever their lengths, since they share their KV. Source: LongRoPE, arXiv 2402.13753.
    """
    parameters = rope.parameters
    trained, factor = parameters["original_max_position_embeddings"], parameters["factor"]
    divisors = parameters["long_factor" if max_positions > trained else "short_factor"]
    scale = parameters.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return frequencies / torch.tensor(divisors, dtype=torch.float32), float(scale)


_KINDS: dict[str, Callable[[RopeSpec, torch.Tensor], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "dynamic": _default,  # stretches beyond the model's context alone, which is not served
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
