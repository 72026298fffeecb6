"""A real but tiny Llama checkpoint, made in a test: random weights, a byte-level BPE tokenizer, a chat template.

    folder = make_tiny_model(tmp_path / "tiny", seed=3)

Same arguments give the same files, byte for byte. Needs no torch.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = (
    "the tenant holds the block and the block holds the tokens",
    "user system assistant hello world, how are you today? I am fine, thank you.",
    "a memory that is shared by many is a memory that is never empty",
    "one two three four five six seven eight nine ten eleven twelve",
    "Straße, naïve, 東京, Привет, 🙂 and other things that are not ASCII",
)


def make_tiny_model(
    path: Path,
    *,
    seed: int = 0,
    vocab_size: int = 384,
    chat_template: bool = True,
    max_context: int = 2048,
) -> Path:
    """Write a two-layer Llama (hidden 64, 4 heads, 2 KV heads, float32) with its tokenizer and return its folder.

    Args:
        path: folder to create; files in it are overwritten.
        seed: of the weights; the tokenizer does not depend on it.
        vocab_size: rows of the embedding, at least 259 (256 bytes and three special tokens).
        chat_template: whether the tokenizer has one; `<|im_end|>` ends a turn then.
        max_context: `max_position_embeddings`, tokens.
    """
    path.mkdir(parents=True, exist_ok=True)
    config = _config(vocab_size, max_context)
    tokenizer = make_tokenizer(vocab_size)
    tokenizer.save(str(path / "tokenizer.json"))
    end = "<|im_end|>" if chat_template else "<|endoftext|>"
    config["eos_token_id"] = tokenizer.token_to_id(end)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": end,
        "model_max_length": max_context,
        "clean_up_tokenization_spaces": False,
    }
    if chat_template:
        tokenizer_config["chat_template"] = CHAT_TEMPLATE
        (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    _write_json(path / "tokenizer_config.json", tokenizer_config)
    _write_json(path / "config.json", config)
    _write_json(
        path / "generation_config.json",
        {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"], "do_sample": False},
    )
    save_file(_weights(config, seed), str(path / "model.safetensors"), metadata={"format": "pt"})
    return path


def make_tokenizer(vocab_size: int = 384) -> Tokenizer:
    """Return a byte-level BPE tokenizer over every byte: any text encodes and decodes back to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer


def _config(vocab_size: int, max_context: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _weights(config: dict[str, object], seed: int) -> dict[str, np.ndarray]:
    """Random float32 weights, large enough that the best logits of a greedy step stand apart."""
    random = np.random.default_rng(seed)
    hidden, inner, kv = 64, 128, 2 * 16

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0.0, 1.0 / np.sqrt(columns), size=(rows, columns)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(int(str(config["vocab_size"])), hidden) * np.float32(8.0),
        "lm_head.weight": matrix(int(str(config["vocab_size"])), hidden) * np.float32(2.0),
        "model.norm.weight": np.ones(hidden, dtype=np.float32),
    }
    for layer in range(int(str(config["num_hidden_layers"]))):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}self_attn.q_proj.weight": matrix(hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": matrix(kv, hidden),
            f"{prefix}self_attn.v_proj.weight": matrix(kv, hidden),
            f"{prefix}self_attn.o_proj.weight": matrix(hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": matrix(inner, hidden),
            f"{prefix}mlp.up_proj.weight": matrix(inner, hidden),
            f"{prefix}mlp.down_proj.weight": matrix(hidden, inner),
            f"{prefix}input_layernorm.weight": np.ones(hidden, dtype=np.float32),
            f"{prefix}post_attention_layernorm.weight": np.ones(hidden, dtype=np.float32),
        }
    return tensors


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
