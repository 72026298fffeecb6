"""Families of models that our own decoder runs, by the class that config.json names. Free of torch.

    spec = read_spec(config)  # None: transformers' own class runs it, see engine.model.fallback

A family is one function from config.json to `DecoderSpec`; a further one is a line in `_FAMILIES`, and a tiny
checkpoint of it in tests/engine/model/checkpoints.py.
"""

from collections.abc import Callable

from engine.errors import ModelError
from engine.model.families import other
from engine.model.families.gemma import gemma, gemma2, gemma3
from engine.model.families.llama import llama, mistral, phi3, qwen2, qwen3, smollm3
from engine.model.spec import Config, DecoderSpec

_FAMILIES: dict[str, Callable[[Config], DecoderSpec]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "SmolLM3ForCausalLM": smollm3,
    "Phi3ForCausalLM": phi3,
    "GemmaForCausalLM": gemma,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
}


def read_spec(config: Config) -> DecoderSpec | None:
    """Read a `transformers` config.json; None for a family that our decoder does not run.

    Raises:
        ModelError: names the field that is missing or not supported, and what is.
    """
    if config.get("quantization_config"):
        raise ModelError("config.json: quantization_config: use the unquantised checkpoint or a GGUF file")
    name = next((name for name in config.get("architectures") or [] if name in _FAMILIES), None)
    if name is None:
        return None
    spec = _FAMILIES[name](config)
    if spec.num_heads % spec.num_kv_heads or spec.head_dim % 2:
        raise ModelError(
            f"config.json: {spec.num_heads} heads over {spec.num_kv_heads} KV heads of size {spec.head_dim}: "
            "the first must be a multiple of the second, and the size even"
        )
    return spec


def read_limits(config: Config) -> tuple[int, int]:
    """Return the size of the vocabulary and the tokens of the longest context, whoever runs the model.

    Raises:
        ModelError: the model cannot be served; names what stands against it.
    """
    spec = read_spec(config)
    return other.limits(config) if spec is None else (spec.vocab_size, spec.max_positions)
