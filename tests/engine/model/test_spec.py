"""Reading config.json: what runs, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import ModelError
from engine.model.spec import DecoderSpec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
}


def test_defaults_of_transformers() -> None:
    """Fields that older configurations leave out take transformers' defaults."""
    spec = DecoderSpec.from_config(LLAMA)
    assert (spec.num_kv_heads, spec.head_dim, spec.norm_eps, spec.tied_embeddings) == (4, 16, 1e-6, False)
    assert (spec.rope.kind, spec.rope.theta) == ("default", 10000.0)


def test_old_and_new_rope_fields_agree() -> None:
    """`rope_theta` with `rope_scaling`, and `rope_parameters`, mean the same."""
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}}
    assert DecoderSpec.from_config(old) == DecoderSpec.from_config(new)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported"),
        ({"architectures": None}, "architecture missing"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"num_hidden_layers": None}, "num_hidden_layers=None"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 15}, "even"),
    ],
)
def test_unsupported_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    """What the decoder cannot run names the field at fault."""
    with pytest.raises(ModelError, match=message):
        DecoderSpec.from_config(LLAMA | change)


def test_sliding_window_ends_the_context() -> None:
    """A model whose attention slides serves the window, within which attention is full; an unused window is ignored."""
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 1024}
    assert DecoderSpec.from_config(mistral).max_positions == 1024
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 1024, "use_sliding_window": False}
    assert DecoderSpec.from_config(qwen).max_positions == 4096
