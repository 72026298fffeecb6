"""Models that our decoder does not run: their own class over our pages, and the reasons for which some are refused."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.model.fallback import load_fallback
from engine.model.folder import read_folder
from engine.model.model import load_model
from engine.model.runner import ModelRunner
from kernels.ops import select_backend
from tests.engine.model.checkpoints import OTHERS, assert_greedy, make_other, oracle, prompt_of
from tests.engine.model.driver import Drive, generate
from tests.engine.model.test_decoder import BLOCK, batch_of

CPU = torch.device("cpu")
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 3.0],
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("kind", OTHERS)
def test_logits_match_transformers(tmp_path: Path, kind: str, backend: str) -> None:
    """In float32 every logit equals that of transformers' own attention, in chunks with decodes, past the window."""
    folder = make_other(tmp_path, kind)
    prompt = prompt_of(90)
    with torch.inference_mode():
        expected = oracle(folder)(torch.tensor([prompt])).logits[0]
    ops = select_backend(backend, device=CPU, dtype=torch.float32)  # type: ignore[arg-type]
    parts, start = [], 0
    with torch.inference_mode():
        model = load_model(folder, ops)
        pages = ops.empty_pages(model.page_shape(num_blocks=6, block_size=BLOCK))
        pages.data.fill_(float("nan"))
        for length in (40, 1, 1, 45, 1, 1, 1):
            chunk = torch.tensor(prompt[start : start + length])
            parts.append(model.forward(chunk, batch_of(start, length, 6), pages, torch.arange(length)))
            start += length
    torch.testing.assert_close(torch.cat(parts), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["gpt_neox", "starcoder2"])
def test_runner_serves_batches(tmp_path: Path, kind: str, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    """Prompts of many lengths, shuffled together, give transformers' greedy tokens; the log says which path serves."""
    folder = make_other(tmp_path, kind)
    config = EngineConfig(dtype=dtype, kv_bytes=1 << 20, poison=True, max_running=16, threads=1)
    with caplog.at_level(logging.WARNING, logger="tollgate.model"):
        runner = ModelRunner(config, folder)
    assert f"{folder.architecture} runs through the class of transformers" in caplog.text
    prompts = [prompt_of(length) for length in (1, 2, 15, 16, 17, 40, 77)]
    results = generate(runner, prompts, Drive(num_tokens=8, chunk=24, max_running=5))
    model = oracle(folder)
    for prompt, generated in zip(prompts, results, strict=True):
        assert_greedy(model, prompt, generated, tie=1e-3 if dtype == "float32" else 0.5)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("gpt_oss", {}, "s_aux"),
        ("mamba", {"max_position_embeddings": 512}, "linear_attention"),
        ("falcon_h1", {}, "layers of hybrid"),
        ("bloom", {"max_position_embeddings": 512}, "position_ids"),
        ("gpt_neo", {"attention_types": [[["global"], 2]], "num_layers": 2, "num_heads": 4}, "attention interface"),
        ("diffllama", {}, "layers ask transformers' attention interface 4 times"),
        ("xmod", {"languages": ["en_XX"]}, "fails on a trial: Input language unknown"),
        ("stablelm", {"rope_parameters": LONGROPE}, "ENGINE_MAX_CONTEXT to 64"),
    ],
)
def test_what_pages_cannot_hold_is_refused(tmp_path: Path, kind: str, options: dict[str, Any], message: str) -> None:
    """Sinks, states of other layers, position biases and unequal heads are refused by name, with what to do."""
    folder = make_other(tmp_path, kind, **options)
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    with torch.inference_mode(), pytest.raises(ModelError, match=message) as refusal:
        load_fallback(folder, ops, dummy=True)
    assert "cannot be served" in str(refusal.value) and "docs/models.md" in str(refusal.value)


def test_longrope_within_its_training_is_served(tmp_path: Path) -> None:
    """A rope that would depend on the batch is served as far as it does not."""
    make_other(tmp_path, "stablelm", rope_parameters=LONGROPE)
    folder = read_folder(tmp_path, name="short", max_context=64)
    with torch.inference_mode():
        load_fallback(folder, select_backend("reference", device=CPU, dtype=torch.float32))


@pytest.mark.parametrize(("change", "message"), [("missing", "1 missing keys"), ("unexpected", "1 unexpected keys")])
def test_weights_must_fit(tmp_path: Path, change: str, message: str) -> None:
    """A checkpoint that lacks a tensor, which would then be random, or has one too many is refused by its name."""
    folder = make_other(tmp_path, "gpt_neox")
    weights = load_file(tmp_path / "model.safetensors")
    name = "gpt_neox.layers.1.mlp.dense_4h_to_h.bias"
    if change == "missing":
        del weights[name]
    else:
        weights[name := "gpt_neox.layers.1.mlp.extra.bias"] = torch.zeros(4)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"{message} of its weights, such as {name}"):
        load_fallback(folder, select_backend("reference", device=CPU, dtype=torch.float32))


def test_int8_weights_are_refused(tmp_path: Path) -> None:
    """Weights that transformers' class would not hold in int8 are not silently left as they are."""
    config = EngineConfig(dtype="float32", weight_dtype="int8", backend="reference", kv_bytes=1 << 20, threads=1)
    with pytest.raises(ModelError, match=r"ENGINE_WEIGHT_DTYPE=int8: GPTNeoXForCausalLM"):
        ModelRunner(config, make_other(tmp_path, "gpt_neox"))


def test_wrong_logits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose layers attend to more than they tell is found out at load: here a state besides the pages."""
    folder = make_other(tmp_path, "gpt_neox")
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    monkeypatch.setattr(
        transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXMLP,
        "forward",
        lambda self, hidden: self.dense_4h_to_h(self.act(self.dense_h_to_4h(hidden.cumsum(1)))),
    )
    with torch.inference_mode(), pytest.raises(ModelError, match=r"differ from its own by \d+"):
        load_fallback(folder, ops)


def test_limits_are_told_without_torch(tmp_path: Path) -> None:
    """A folder's vocabulary and context come from config.json, under whatever name the family gives them."""
    folder = make_other(tmp_path, "gpt2")
    config = json.loads((tmp_path / "config.json").read_text())
    assert "max_position_embeddings" not in config
    assert (folder.architecture, folder.vocab_size, folder.max_context_tokens) == ("GPT2LMHeadModel", 384, 512)
    assert read_folder(tmp_path, name="short", max_context=100).max_context_tokens == 100


def test_dummy_weights(tmp_path: Path) -> None:
    """A folder without weights serves random ones of its shapes."""
    make_other(tmp_path, "starcoder2")
    (tmp_path / "model.safetensors").unlink()
    folder = read_folder(tmp_path, name="dummy", dummy=True)
    runner = ModelRunner(EngineConfig(load_format="dummy", dtype="float32", kv_bytes=1 << 20, threads=1), folder)
    (generated,) = generate(runner, [prompt_of(20)], Drive(num_tokens=4))
    assert len(generated) == 4
