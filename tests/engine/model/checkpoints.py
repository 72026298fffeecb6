"""Tiny random checkpoints of every family that the decoder runs, saved by `transformers` itself."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.model.folder import ModelFolder, read_folder
from engine.step import TokenLogprobs
from tests.engine.tiny_model import make_tokenizer

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 384,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}


def _longrope(count: int) -> dict[str, Any]:
    """Return a stretched rope, as of Phi-3 long, for heads of which twice `count` elements turn."""
    long_factor = [1.5 + index for index in range(count)]
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "long_factor": long_factor,
        "short_factor": [1.0 + index / 4 for index in range(count)],
    }


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-multi-query": {"model_type": "llama", "num_key_value_heads": 1, "head_dim": 40},
    "llama-linear-rope": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    },
    "llama-dynamic-rope": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama-3-rope": {"model_type": "llama", "rope_parameters": _LLAMA3},
    "llama-yarn": {"model_type": "llama", "rope_parameters": _YARN},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "mistral-window": {"model_type": "mistral", "sliding_window": 40},
    "qwen2-window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1},
    "qwen3-window": {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "smollm3-window": {
        "model_type": "smollm3",
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 50,
        "tie_word_embeddings": True,
    },
    "phi3": {"model_type": "phi3", "sliding_window": 47},
    "phi3-longrope": {"model_type": "phi3", "rope_parameters": _longrope(8), "original_max_position_embeddings": 64},
    "phi3-partial": {
        "model_type": "phi3",
        "rope_parameters": {**_longrope(6), "partial_rotary_factor": 0.75},
        "original_max_position_embeddings": 64,
        "tie_word_embeddings": True,
    },
    "gemma": {"model_type": "gemma", "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", "tie_word_embeddings": True, "sliding_window": 32, "query_pre_attn_scalar": 24},
    "gemma3": {
        "model_type": "gemma3_text",
        "tie_word_embeddings": True,
        "num_hidden_layers": 3,
        "sliding_window": 32,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 24,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}
# What our decoder does not know, and transformers' own class runs.
OTHERS: dict[str, dict[str, Any]] = {
    "gpt_neox": {"num_key_value_heads": None},  # fused QKV by head, a quarter of a head turns, parallel residual
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},  # learned positions
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "olmo2": {},  # norms behind, not before
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3},
    "cohere2": {"sliding_window": 20, "sliding_window_pattern": 2},  # pairs of neighbours turn; full layers don't
    "starcoder2": {"sliding_window": 33},
    "stablelm": {},  # passes nothing on to the attention function
    "phi": {},
    "mixtral": {"num_local_experts": 4},
    "deepseek_v3": {  # values narrower than keys
        "num_key_value_heads": 4,
        "first_k_dense_replace": 2,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12,
        "v_head_dim": 14,
    },
}


def make_checkpoint(
    path: Path,
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    options: Mapping[str, Any] | None = None,
) -> ModelFolder:
    """Write a checkpoint whose logits stand well apart and return its folder. `options` stand for a family's own."""
    options = {**_BASE, **(FAMILIES[family] if options is None else options)}
    options = {name: value for name, value in options.items() if value is not None or name not in _BASE}
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            scale = 0.2 if weight.dim() == 1 else 1.5 * weight.shape[-1] ** -0.5
            weight.copy_(noise * scale + (1.0 if name.endswith("norm.weight") else 0.0))
    model.to(dtype).save_pretrained(path)
    make_tokenizer(384).save(str(path / "tokenizer.json"))
    return read_folder(path, name=family)


def make_other(path: Path, kind: str, **options: object) -> ModelFolder:
    """Write a tiny checkpoint of a family that the decoder does not know."""
    return make_checkpoint(path, kind, options={"model_type": kind, "head_dim": None} | OTHERS.get(kind, {}) | options)


def oracle(folder: ModelFolder, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return `transformers`' own model of the folder."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder.path, dtype=dtype)
    return model.eval()


def prompt_of(length: int, vocab: int = 384, seed: int = 0) -> list[int]:
    """Return random token ids, the same for the same arguments."""
    random = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, vocab, (length,), generator=random).tolist()


def assert_greedy(model: Callable[..., Any], prompt: list[int], generated: list[int], *, tie: float = 1e-3) -> None:
    """Fail unless every generated token is the model's own choice after the tokens before it.

    By induction that makes the whole equal to the model's greedy generation; a token is excused only where the two best
    logits are within `tie`.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + generated[:-1]]), logits_to_keep=len(generated)).logits[0]
    best = logits.topk(2, -1)
    for position, token in enumerate(generated):
        if token != int(best.indices[position, 0]):
            gap = float(best.values[position, 0] - logits[position, token])
            assert gap <= tie, f"token {position} is {token}, {gap:.5f} below {int(best.indices[position, 0])}"


def assert_logprobs(
    model: Callable[..., Any],
    prompt: list[int],
    generated: list[int],
    measured: Sequence[TokenLogprobs | None],
    *,
    tolerance: float = 1e-4,
) -> None:
    """Fail unless what was measured of every generated token is what one plain forward over the whole text says."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + generated[:-1]]), logits_to_keep=len(generated)).logits[0]
    truth = logits.double().log_softmax(-1)
    for position, (token, one) in enumerate(zip(generated, measured, strict=True)):
        assert one is not None
        expected = truth[position]
        assert abs(one.chosen - float(expected[token])) <= tolerance
        ids, logprobs = [pair[0] for pair in one.top], [pair[1] for pair in one.top]
        assert logprobs == sorted(logprobs, reverse=True)
        assert len(set(ids)) == len(ids)
        for pair, best in zip(one.top, expected.topk(len(ids)).values.tolist(), strict=True):
            assert abs(pair[1] - float(expected[pair[0]])) <= tolerance
            assert abs(pair[1] - best) <= tolerance  # another token at this rank only where both are as good
