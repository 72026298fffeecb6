"""Llama and those that differ from it in a field or two: Mistral, Qwen2, Qwen3, SmolLM3, Phi-3."""

from collections.abc import Sequence
from typing import Any

from engine.errors import ModelError
from engine.model.families.fields import layer_windows, number, refuse_activation, rope, size
from engine.model.spec import Config, DecoderSpec, LayerSpec


def llama(config: Config) -> DecoderSpec:
    """Read Llama's configuration, which SmolLM and SmolLM2 use too."""
    dim = head_dim(config)
    turn = rope(config, dim)
    return _spec(config, dim, [LayerSpec(rope=turn)] * size(config, "num_hidden_layers"))


def mistral(config: Config) -> DecoderSpec:
    """Read Mistral's: every layer slides where there is a window."""
    dim, window = head_dim(config), size(config, "sliding_window", 0)
    if config.get("layer_types") is not None:
        raise ModelError("config.json: layer_types: a Mistral model has none; its class must be Ministral")
    turn = rope(config, dim)
    return _spec(config, dim, [LayerSpec(rope=turn, window=window)] * size(config, "num_hidden_layers"))


def qwen2(config: Config) -> DecoderSpec:
    """Read Qwen2's: biases of QKV (the weights tell), upper layers that slide where it is switched on."""
    return _qwen(config, head_dim(config), qk_norm=False)


def qwen3(config: Config) -> DecoderSpec:
    """Read Qwen3's: Qwen2's with normalised queries and keys."""
    return _qwen(config, size(config, "head_dim", 128), qk_norm=True)


def smollm3(config: Config) -> DecoderSpec:
    """Read SmolLM3's: some layers know no positions, and those slide where it is switched on."""
    dim, num_layers = head_dim(config), size(config, "num_hidden_layers")
    turn = rope(config, dim, theta=2e6)
    interval = size(config, "no_rope_layer_interval", 4)
    turns = config.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(num_layers)]
    if len(turns) < num_layers:
        raise ModelError(f"config.json: no_rope_layers={turns!r}: expected one entry for each of {num_layers} layers")
    turns = [bool(one) for one in turns[:num_layers]]
    windows = _switched_windows(config, [not one for one in turns])
    layers = [LayerSpec(rope=turn if one else None, window=window) for one, window in zip(turns, windows, strict=True)]
    return _spec(config, dim, layers, tied_embeddings=bool(config.get("tie_word_embeddings", True)))


def phi3(config: Config) -> DecoderSpec:
    """Read Phi-3's, which Phi-3.5 and Phi-4 use too: fused weights, a window, part of a head may turn."""
    dim, window = head_dim(config), size(config, "sliding_window", 0)
    layer = LayerSpec(rope=rope(config, dim, partial=True), window=window)
    layers = [layer] * size(config, "num_hidden_layers")
    return _spec(config, dim, layers, fused_weights=True, norm_eps=number(config, "rms_norm_eps", 1e-5))


def head_dim(config: Config) -> int:
    """Return a head's elements: said, or the hidden size divided."""
    return size(config, "head_dim", size(config, "hidden_size") // size(config, "num_attention_heads"))


def _qwen(config: Config, dim: int, *, qk_norm: bool) -> DecoderSpec:
    lowest = config.get("max_window_layers")
    lowest = 28 if lowest is None else int(lowest)
    num_layers = size(config, "num_hidden_layers")
    windows = _switched_windows(config, [index >= lowest for index in range(num_layers)])
    turn = rope(config, dim)
    return _spec(config, dim, [LayerSpec(rope=turn, window=window) for window in windows], qk_norm=qk_norm)


def _switched_windows(config: Config, default: Sequence[bool]) -> tuple[int, ...]:
    """Return each layer's window, 0 for all while `use_sliding_window` is off."""
    if not config.get("use_sliding_window", False) or not config.get("sliding_window"):
        return (0,) * len(default)
    return layer_windows(config, size(config, "sliding_window"), default)


def _spec(config: Config, dim: int, layers: Sequence[LayerSpec], **different: Any) -> DecoderSpec:
    """Put together what all of them read alike."""
    refuse_activation(config, "hidden_act", default="silu", allowed=("silu", "swish"))
    heads = size(config, "num_attention_heads")
    alike: dict[str, Any] = {
        "norm_eps": number(config, "rms_norm_eps", 1e-6),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
    }
    return DecoderSpec(
        layers=tuple(layers),
        hidden_size=size(config, "hidden_size"),
        intermediate_size=size(config, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=size(config, "num_key_value_heads", heads),
        head_dim=dim,
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings"),
        attention_scale=dim**-0.5,
        **(alike | different),
    )
