"""What kind of decoder a model's config.json describes; what cannot run is refused here, by name. Free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelError

Config = Mapping[str, Any]

_ARCHITECTURES = {
    "LlamaForCausalLM": False,
    "MistralForCausalLM": False,
    "Qwen2ForCausalLM": False,
    "Qwen3ForCausalLM": True,
}  # name -> normalises queries and keys per head
_ROPE_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}  # kind -> numbers that it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions: `kind` is one of default, linear, llama3, yarn; `parameters` are that kind's own."""

    theta: float
    kind: str
    parameters: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder of the Llama family. Sizes count elements; `max_positions` counts tokens."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    qk_norm: bool
    tied_embeddings: bool
    rope: RopeSpec

    @classmethod
    def from_config(cls, config: Config) -> "DecoderSpec":
        """Read a `transformers` config.json.

        Raises:
            ModelError: names the architecture or field that is missing or not supported, and what is.
        """
        architecture = _architecture(config)
        _refuse_unsupported(config)
        heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
        spec = cls(
            num_layers=_size(config, "num_hidden_layers"),
            hidden_size=hidden,
            intermediate_size=_size(config, "intermediate_size"),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab_size=_size(config, "vocab_size"),
            max_positions=_max_positions(config),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            qk_norm=_ARCHITECTURES[architecture],
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            rope=_rope(config),
        )
        if spec.num_heads % spec.num_kv_heads or spec.head_dim % 2:
            raise ModelError(
                f"config.json: {spec.num_heads} heads over {spec.num_kv_heads} KV heads of size {spec.head_dim}: "
                "the first must be a multiple of the second, and the size even"
            )
        return spec


def _architecture(config: Config) -> str:
    found = config.get("architectures") or []
    for name in found:
        if name in _ARCHITECTURES:
            return str(name)
    raise ModelError(
        f"config.json: architecture {', '.join(map(str, found)) or 'missing'} is not supported; "
        f"choose a model of {', '.join(_ARCHITECTURES)}"
    )


def _refuse_unsupported(config: Config) -> None:
    checks = (
        ("hidden_act", config.get("hidden_act", "silu") not in ("silu", "swish"), "only silu is supported"),
        (
            "quantization_config",
            bool(config.get("quantization_config")),
            "use the unquantised checkpoint or a GGUF file",
        ),
        ("partial_rotary_factor", _partial_rotary(config) != 1.0, "only full rotary positions are supported"),
    )
    for field, refused, advice in checks:
        if refused:
            raise ModelError(f"config.json: {field}={config.get(field)!r}: {advice}")


def _partial_rotary(config: Config) -> float:
    parameters = config.get("rope_parameters") or {}
    return float(parameters.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0) or 1.0)


def _size(config: Config, field: str) -> int:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {field}={value!r}: expected a positive whole number")
    return value


def _max_positions(config: Config) -> int:
    """Return the context that the pages may hold: a sliding window ends it, within which attention is full anyway."""
    positions = _size(config, "max_position_embeddings")
    window = config.get("sliding_window")
    slides = window and config.get("use_sliding_window", config.get("model_type") == "mistral")
    return min(positions, int(window)) if slides and window else positions


def _rope(config: Config) -> RopeSpec:
    """Read `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    parameters: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = str(parameters.pop("rope_type", parameters.pop("type", "default")))
    if kind not in _ROPE_FIELDS:
        raise ModelError(f"config.json: rope_type {kind!r} is not supported; supported are {', '.join(_ROPE_FIELDS)}")
    for field in _ROPE_FIELDS[kind]:
        if not isinstance(parameters.get(field), int | float):
            raise ModelError(f"config.json: rope_type {kind!r} needs the number {field!r}")
    theta = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    parameters.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return RopeSpec(theta=theta, kind=kind, parameters=parameters)
