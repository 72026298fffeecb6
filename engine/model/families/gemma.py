"""Gemma 1, 2 and 3 (text): scaled embeddings, norms around each part, windows on most layers, soft caps."""

from collections.abc import Sequence
from typing import Any

from engine.errors import ModelError
from engine.model.families.fields import layer_windows, number, refuse_activation, rope, rope_of, size
from engine.model.spec import Config, DecoderSpec, LayerSpec

_TANH = "gelu_pytorch_tanh"


def gemma(config: Config) -> DecoderSpec:
    """Read Gemma's. Its first files say `gelu` where the tanh formula is meant."""
    refuse_activation(config, "hidden_act", default=_TANH, allowed=("gelu", _TANH))
    dim = size(config, "head_dim", 256)
    layers = [LayerSpec(rope=rope(config, dim))] * size(config, "num_hidden_layers")
    return _spec(config, layers, attention_scale=dim**-0.5, num_kv_heads=size(config, "num_key_value_heads", 16))


def gemma2(config: Config) -> DecoderSpec:
    """Read Gemma 2's: every other layer slides; scores and logits have soft caps."""
    turn = rope(config, size(config, "head_dim", 256))
    slides = [(index + 1) % 2 != 0 for index in range(size(config, "num_hidden_layers"))]
    windows = layer_windows(config, size(config, "sliding_window", 4096), slides)
    return _spec(
        config,
        [LayerSpec(rope=turn, window=window) for window in windows],
        attention_soft_cap=_soft_cap(config, "attn_logit_softcapping", 50.0),
        logit_soft_cap=_soft_cap(config, "final_logit_softcapping", 30.0),
        **_both_later(config),
    )


def gemma3(config: Config) -> DecoderSpec:
    """Read Gemma 3's text part: QK norm; layers that slide turn by a base of their own."""
    if config.get("attn_logit_softcapping"):
        raise ModelError("config.json: attn_logit_softcapping: Gemma 3 has no soft cap of scores")
    num_layers, pattern = size(config, "num_hidden_layers"), size(config, "sliding_window_pattern", 6)
    slides = [(index + 1) % pattern != 0 for index in range(num_layers)]
    windows = layer_windows(config, size(config, "sliding_window", 4096), slides)
    everywhere, near = _two_ropes(config)
    return _spec(
        config,
        [LayerSpec(rope=near if window else everywhere, window=window) for window in windows],
        logit_soft_cap=_soft_cap(config, "final_logit_softcapping", 0.0),
        qk_norm=True,
        **_both_later(config),
    )


def _two_ropes(config: Config) -> tuple[Any, Any]:
    """Return the rope of layers that see everything, and that of layers that slide; only the first may be scaled."""
    dim = size(config, "head_dim", 256)
    nested = config.get("rope_parameters") or {}
    every: dict[str, Any] = dict(nested.get("full_attention") or config.get("rope_scaling") or {})
    near: dict[str, Any] = dict(nested.get("sliding_attention") or {})
    every_base = every.pop("rope_theta", None) or config.get("rope_theta") or 1e6
    near_base = near.pop("rope_theta", None) or config.get("rope_local_base_freq") or 1e4
    return (
        rope_of(config, every, dim, theta=float(every_base)),
        rope_of(config, near, dim, theta=float(near_base)),
    )


def _soft_cap(config: Config, field: str, default: float) -> float:
    """Return a cap; null in the file means none, a file without the field means the family's own."""
    return number(config, field, 0.0 if field in config else default)


def _both_later(config: Config) -> dict[str, Any]:
    """Return what Gemma 2 and 3 share."""
    refuse_activation(config, "hidden_activation", default=_TANH, allowed=(_TANH,))
    scalar = number(config, "query_pre_attn_scalar", 256.0)
    if not scalar:
        raise ModelError("config.json: query_pre_attn_scalar=0: expected a number above 0")
    return {
        "attention_scale": scalar**-0.5,
        "num_kv_heads": size(config, "num_key_value_heads", 4),
        "post_norms": True,
    }


def _spec(config: Config, layers: Sequence[LayerSpec], **different: Any) -> DecoderSpec:
    if config.get("use_bidirectional_attention"):
        raise ModelError("config.json: use_bidirectional_attention: choose a causal model")
    hidden = size(config, "hidden_size")
    return DecoderSpec(
        layers=tuple(layers),
        hidden_size=hidden,
        intermediate_size=size(config, "intermediate_size"),
        num_heads=size(config, "num_attention_heads"),
        head_dim=size(config, "head_dim", 256),
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings"),
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        embedding_scale=hidden**0.5,
        activation="gelu",
        norm_offset=1.0,
        **different,
    )
