"""The decoder's logits against `transformers`, for every family and rope variant."""

from pathlib import Path

import pytest
import torch

from engine.errors import ModelError
from engine.model.decoder import Decoder
from engine.model.folder import ModelFolder
from engine.model.loader import load_weights
from engine.model.spec import DecoderSpec
from kernels.batch import AttentionBatch
from kernels.ops import Ops, select_backend
from kernels.pages import PageShape
from tests.engine.model.checkpoints import FAMILIES, make_checkpoint, oracle, prompt_of

CPU = torch.device("cpu")
BLOCK = 16


def logits_of(folder: ModelFolder, ops: Ops, token_ids: list[int]) -> torch.Tensor:
    """Return the logits after every token of one prefill."""
    spec = DecoderSpec.from_config(folder.config)
    length = len(token_ids)
    num_blocks = -(-length // BLOCK)
    shape = PageShape(
        num_layers=spec.num_layers,
        num_blocks=num_blocks,
        block_size=BLOCK,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
    )
    batch = AttentionBatch(
        positions=torch.arange(length, dtype=torch.int32),
        slots=torch.arange(length),
        query_starts=torch.tensor([0, length], dtype=torch.int32),
        contexts=torch.tensor([length], dtype=torch.int32),
        rows=torch.tensor([0], dtype=torch.int32),
        block_table=torch.arange(num_blocks, dtype=torch.int32)[None],
        max_query=length,
        max_context=length,
    )
    with torch.inference_mode():
        decoder = Decoder(spec, load_weights(folder, spec, ops), ops, folder.max_context_tokens)
        return decoder.forward(torch.tensor(token_ids), batch, ops.empty_pages(shape), torch.arange(length))


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_match_transformers(tmp_path: Path, family: str, backend: str) -> None:
    """In float32 every logit of a prefill equals that of transformers' own model."""
    folder = make_checkpoint(tmp_path, family)
    prompt = prompt_of(150)
    with torch.inference_mode():
        expected = oracle(folder)(torch.tensor([prompt])).logits[0]
    found = logits_of(folder, select_backend(backend, device=CPU, dtype=torch.float32), prompt)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_bfloat16_logits_are_as_good_as_transformers(tmp_path: Path, backend: str) -> None:
    """In bfloat16 the logits are no farther from a float64 oracle than those of transformers in bfloat16."""
    folder = make_checkpoint(tmp_path, "llama", dtype=torch.bfloat16)
    prompt = torch.tensor([prompt_of(150)])
    with torch.inference_mode():
        exact = oracle(folder, torch.float64)(prompt).logits[0]
        theirs = oracle(folder, torch.bfloat16)(prompt).logits[0].double()
    ops = select_backend(backend, device=CPU, dtype=torch.bfloat16)  # type: ignore[arg-type]
    ours = logits_of(folder, ops, prompt[0].tolist()).double()
    assert (ours - exact).square().mean().sqrt() <= 1.1 * (theirs - exact).square().mean().sqrt()


def test_missing_weight_is_named(tmp_path: Path) -> None:
    """A checkpoint without a tensor that config.json implies is refused by that tensor's name."""
    folder = make_checkpoint(tmp_path, "llama-tied")
    spec = DecoderSpec.from_config({**folder.config, "tie_word_embeddings": False})
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        load_weights(folder, spec, ops)


def test_weight_without_a_place_is_refused(tmp_path: Path) -> None:
    """A tensor that the decoder would leave out, and so compute something else, is refused by name."""
    folder = make_checkpoint(tmp_path, "qwen3")
    spec = DecoderSpec.from_config({**folder.config, "architectures": ["LlamaForCausalLM"]})
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    with pytest.raises(ModelError, match="k_norm"):
        load_weights(folder, spec, ops)


def test_wrong_shape_is_refused(tmp_path: Path) -> None:
    """A tensor of another shape than config.json says is refused with both shapes."""
    folder = make_checkpoint(tmp_path, "llama")
    spec = DecoderSpec.from_config({**folder.config, "intermediate_size": 97})
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    with pytest.raises(ModelError, match=r"\(96, 64\); config.json says \(97, 64\)"):
        load_weights(folder, spec, ops)
