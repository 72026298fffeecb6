"""A tiny Llama as a GGUF file, the way llama.cpp writes one."""

import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.engine.tiny_model import make_tokenizer

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, VOCAB = 64, 96, 4, 2, 2, 384


def write_gguf(path: Path, *, seed: int = 0, pre_tokenizer: str = "smollm") -> Path:
    """Write random float32 weights with a byte-level BPE tokenizer."""
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    _add_tokenizer(writer, pre_tokenizer)
    random = np.random.default_rng(seed)
    for name, shape in _shapes().items():
        norm = name.endswith("norm.weight")
        weight = random.normal(1.0 if norm else 0.0, 0.2, size=shape)
        writer.add_tensor(name, weight.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, pre_tokenizer: str) -> None:
    tokenizer = make_tokenizer(VOCAB)
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=lambda token: vocab[token])
    tokens += [f"unused{index}" for index in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")


def _shapes() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        block = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes
