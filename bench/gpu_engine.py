"""The engine's decode on a GPU at the shapes of Llama-3-8B, random weights: the third part of `bench.gpu`.

A step reads all weights but the embedding, and the keys and values of its contexts; at the measured copy bandwidth that
takes a time, which is what the speed is put beside.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from bench.engine import DecodeCase, Ours
from bench.gpu_correct import Finding
from bench.gpu_limits import Limits
from bench.report import Row, medians, take_turns
from engine.config import EngineConfig
from engine.model.folder import ModelFolder, read_folder

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "eos_token_id": 128001,
}
TINY = LLAMA | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 40960,
    "max_position_embeddings": 1024,
    "eos_token_id": 1,
}
CASES = tuple(DecodeCase(batch, context) for context in (1024, 8192) for batch in (1, 8, 32, 128))
PROMPTS = (700, 2000, 8192)
FREE = 12 << 30  # bytes of the GPU that weights in the making and activations take beside weights and pool
CHUNK = 8192  # tokens of a step


def engine_rows(limits: Limits, scratch: Path, *, tiny: bool, repeats: int) -> Iterator[Row]:
    """Yield decode by batch and context, then prefill, in tokens a second."""
    shapes = TINY if tiny else LLAMA
    config = _config(scratch, shapes, tiny=tiny)
    ours = Ours(config, _folder(scratch, shapes))
    token_bytes = _kv_bytes(shapes, itemsize=4 if tiny else 2)
    for case in (DecodeCase(2, 16),) if tiny else CASES:
        if case.batch * (case.context + case.steps + 16) * token_bytes > config.kv_bytes:
            print(f"{case}: left out, its KV does not fit the GPU")
            continue
        ours.fill(case)
        (speed,) = medians(take_turns({"ours": partial(ours.decode, case)}, repeats=repeats))
        moved = _weight_bytes(shapes) + case.batch * case.context * token_bytes
        step = case.batch / speed
        yield Row(
            case=str(case),
            ours=speed,
            unit="tok/s",
            beside=case.batch * limits.copy / moved,
            note=f"{step * 1e3:.2f} ms a step",
        )
    for num_tokens in (20,) if tiny else PROMPTS:
        (speed,) = medians(take_turns({"ours": partial(ours.prefill, num_tokens)}, repeats=repeats))
        flops = speed * _weight_bytes(shapes)  # two a weight of two bytes
        yield Row(
            case=f"prefill, {num_tokens:,} tokens",
            ours=speed,
            unit="tok/s",
            beside=limits.flops / _weight_bytes(shapes),
            note=f"linears at {flops / 1e12:.0f} Tflop/s",
        )


def agree(scratch: Path, *, tiny: bool) -> Finding:
    """Generate greedily in float32 with Triton and with the reference: the tokens must be the same.

    So the runner is checked as it runs here: its graphs, its tables on the GPU, its copies of blocks.
    """
    shapes = TINY | ({} if tiny else {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4})
    folder = _folder(scratch, shapes)
    case = DecodeCase(3, 40 if tiny else 600)
    found = []
    for backend in ("triton", "reference"):
        config = replace(_config(scratch, TINY, tiny=True), backend=backend, device="cpu" if tiny else "cuda")
        ours = Ours(replace(config, kv_bytes=64 << 20), folder)
        ours.fill(case)
        found.append(ours.generate(case, 2 if tiny else 16))
    same = sum(one == other for one, other in zip(*found, strict=True))
    problem = "" if same == len(found[0]) else f"{same} of {len(found[0])} steps alike: {found}"[:300]
    return Finding("runner: tokens as by the reference", "float32", 0.0, problem)


def _config(scratch: Path, shapes: dict[str, object], *, tiny: bool) -> EngineConfig:
    if tiny:
        return EngineConfig(
            model=str(scratch),
            load_format="dummy",
            device="cpu",
            backend="triton",
            dtype="float32",
            kv_bytes=1 << 20,
            max_batched_tokens=32,
            max_running=8,
        )
    free, _ = torch.cuda.mem_get_info()
    kv_bytes = free - _weight_bytes(shapes) - FREE
    return EngineConfig(
        model=str(scratch),
        load_format="dummy",
        device="cuda",
        dtype="bfloat16",
        kv_bytes=kv_bytes,
        max_batched_tokens=CHUNK,
    )


def _folder(scratch: Path, shapes: dict[str, object]) -> ModelFolder:
    """Write what a folder without weights needs and read it."""
    (scratch / "config.json").write_text(json.dumps(shapes))
    (scratch / "tokenizer.json").write_text(json.dumps({"added_tokens": []}))
    return read_folder(scratch, name="llama-3-8b-shapes", dummy=True)


def _number(shapes: dict[str, object], name: str) -> int:
    return int(str(shapes[name]))


def _kv_bytes(shapes: dict[str, object], *, itemsize: int) -> int:
    """Return bytes of one token's keys and values."""
    dim = _number(shapes, "hidden_size") // _number(shapes, "num_attention_heads")
    return 2 * _number(shapes, "num_key_value_heads") * dim * _number(shapes, "num_hidden_layers") * itemsize


def _weight_bytes(shapes: dict[str, object]) -> int:
    """Return bytes of the weights that a step reads, two each: the embedding is looked up, not read."""
    hidden, heads = _number(shapes, "hidden_size"), _number(shapes, "num_attention_heads")
    kv = hidden * _number(shapes, "num_key_value_heads") // heads
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * _number(shapes, "intermediate_size")
    return 2 * (layer * _number(shapes, "num_hidden_layers") + hidden * _number(shapes, "vocab_size"))
