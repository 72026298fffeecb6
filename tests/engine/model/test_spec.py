"""Reading config.json: what runs, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import ModelError
from engine.model.families import read_limits, read_spec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
}

GEMMA3: dict[str, Any] = LLAMA | {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 16,
    "sliding_window_pattern": 3,
}


def test_defaults_of_transformers() -> None:
    """Fields that older configurations leave out take transformers' defaults."""
    spec = read_spec(LLAMA)
    assert spec.layers[0].rope is not None
    assert (spec.num_kv_heads, spec.head_dim, spec.norm_eps, spec.tied_embeddings) == (4, 16, 1e-6, False)
    assert (spec.layers[0].rope.kind, spec.layers[0].rope.theta) == ("default", 10000.0)


def test_limits_of_other_families() -> None:
    """A family that transformers' own class runs has its limits under one of several names."""
    other = LLAMA | {"architectures": ["GPT2LMHeadModel"]}
    assert read_spec(other) is None
    assert read_limits(other) == (300, 4096)
    renamed = {name: value for name, value in other.items() if name != "max_position_embeddings"}
    assert read_limits(renamed | {"n_positions": 77}) == (300, 77)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"], "max_position_embeddings": None}, "state-space"),
        ({"architectures": None}, "architecture missing"),
        ({"architectures": []}, "architecture missing"),
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM is not supported"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "text alone"),
        ({"architectures": ["OtherForCausalLM"], "is_encoder_decoder": True}, "text alone"),
        ({"architectures": ["OtherForCausalLM"], "vocab_size": None}, "vocab_size=None"),
        ({"architectures": ["OtherForCausalLM"], "quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_nobody_runs_is_refused(change: dict[str, Any], message: str) -> None:
    """What is no causal language model over text, or has no positions, is refused before any weight is read."""
    with pytest.raises(ModelError, match=message):
        read_limits(LLAMA | change)


def test_old_and_new_rope_fields_agree() -> None:
    """`rope_theta` with `rope_scaling`, and `rope_parameters`, mean the same."""
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}}
    assert read_spec(old) == read_spec(new)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "rope_type 'proportional'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "8 numbers 'short_factor'"),
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
        read_spec(LLAMA | change)


def windows(config: dict[str, Any]) -> list[int]:
    """Return each layer's window."""
    return [layer.window for layer in read_spec(config).layers]


def test_windows_of_layers() -> None:
    """Which layers slide follows the family: all of Mistral's, Qwen's upper ones if switched on, half of Gemma 2's."""
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 1024}
    assert (windows(mistral), read_spec(mistral).max_positions) == ([1024, 1024], 4096)
    assert windows(mistral | {"sliding_window": None}) == [0, 0]
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 1024, "max_window_layers": 1}
    assert windows(qwen | {"use_sliding_window": False}) == [0, 0]
    assert windows(qwen | {"use_sliding_window": True}) == [0, 1024]
    gemma = LLAMA | {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 8, "num_key_value_heads": 2}
    assert windows(gemma) == [8, 0]
    assert windows(gemma | {"layer_types": ["full_attention", "sliding_attention"]}) == [0, 8]


def test_gemma3_before_transformers_5() -> None:
    """Gemma 3's first files name the bases of its two ropes, and the pattern of its windows, by other fields."""
    old = GEMMA3 | {
        "rope_theta": 1e6,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8},
    }
    near, _, everywhere = read_spec(old).layers
    assert near.rope is not None and everywhere.rope is not None
    assert (near.window, near.rope.theta, near.rope.kind) == (16, 2e4, "default")
    assert (everywhere.window, everywhere.rope.theta, everywhere.rope.kind) == (0, 1e6, "linear")


def test_soft_caps() -> None:
    """A soft cap that is null is none; one that is left out is Gemma 2's own."""
    gemma = LLAMA | {"architectures": ["Gemma2ForCausalLM"], "num_key_value_heads": 2}
    assert (read_spec(gemma).attention_soft_cap, read_spec(gemma).logit_soft_cap) == (50.0, 30.0)
    bare = read_spec(gemma | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (bare.attention_soft_cap, bare.logit_soft_cap) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_activation": "relu"}, "hidden_activation='relu'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"layer_types": ["full_attention"]}, "each of 3 layers"),
        ({"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        ({"sliding_window": "wide"}, "sliding_window='wide'"),
        ({"final_logit_softcapping": -1}, "final_logit_softcapping=-1"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps='small'"),
    ],
)
def test_unsupported_gemma_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    """What Gemma's fields may say that cannot run is refused by the field."""
    with pytest.raises(ModelError, match=message):
        read_spec(GEMMA3 | change)


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("MistralForCausalLM", {"layer_types": ["full_attention"] * 2}, "layer_types"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, "each of 2 layers"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "su"}}, "short_factor"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.2}, "even"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": -1}, "sliding_window=-1"),
    ],
)
def test_unsupported_of_others(architecture: str, change: dict[str, Any], message: str) -> None:
    """The same for fields of the other families."""
    with pytest.raises(ModelError, match=message):
        read_spec(LLAMA | {"architectures": [architecture]} | change)
