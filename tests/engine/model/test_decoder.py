"""The decoder's logits against `transformers`, for every family and rope variant."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.errors import ModelError
from engine.model.decoder import Decoder
from engine.model.families import read_spec
from engine.model.folder import ModelFolder, read_folder
from engine.model.loader import load_weights
from kernels.batch import AttentionBatch
from kernels.ops import Ops, select_backend
from kernels.pages import PageShape
from tests.engine.model.checkpoints import FAMILIES, make_checkpoint, oracle, prompt_of

CPU = torch.device("cpu")
BLOCK = 16


def logits_of(folder: ModelFolder, ops: Ops, token_ids: list[int], chunks: Sequence[int] = ()) -> torch.Tensor:
    """Return the logits after every token of one sequence, computed whole or chunk by chunk over the pages."""
    spec = read_spec(folder.config)
    num_blocks = -(-len(token_ids) // BLOCK)
    shape = PageShape(
        num_layers=spec.num_layers,
        num_blocks=num_blocks,
        block_size=BLOCK,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
    )
    parts, start = [], 0
    with torch.inference_mode():
        pages = ops.empty_pages(shape)
        pages.data.fill_(float("nan"))
        decoder = Decoder(spec, load_weights(folder, spec, ops), ops, folder.max_context_tokens)
        for length in chunks or [len(token_ids)]:
            chunk = torch.tensor(token_ids[start : start + length])
            batch = batch_of(start, length, num_blocks)
            parts.append(decoder.forward(chunk, batch, pages, torch.arange(length)))
            start += length
    assert start == len(token_ids)
    return torch.cat(parts)


def batch_of(start: int, length: int, num_blocks: int) -> AttentionBatch:
    """Return a step of one sequence whose blocks lie backwards."""
    table = torch.arange(num_blocks - 1, -1, -1, dtype=torch.int32)[None]
    positions = torch.arange(start, start + length)
    return AttentionBatch(
        positions=positions.int(),
        slots=table[0, positions // BLOCK].long() * BLOCK + positions % BLOCK,
        query_starts=torch.tensor([0, length], dtype=torch.int32),
        contexts=torch.tensor([start + length], dtype=torch.int32),
        rows=torch.tensor([0], dtype=torch.int32),
        block_table=table,
        max_query=length,
        max_context=start + length,
    )


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_match_transformers(tmp_path: Path, family: str, backend: str) -> None:
    """In float32 every logit equals that of transformers' own model, the prompt as a whole and in chunks with decodes
    between and after them, well past the family's window.
    """
    folder = make_checkpoint(tmp_path, family)
    prompt = prompt_of(150)
    with torch.inference_mode():
        expected = oracle(folder)(torch.tensor([prompt])).logits[0]
    ops = select_backend(backend, device=CPU, dtype=torch.float32)  # type: ignore[arg-type]
    for chunks in ((), (70, 1, 1, 41, 30, *(1,) * 7)):
        found = logits_of(folder, ops, prompt, chunks)
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", ["phi3-longrope", "phi3-partial"])
def test_short_longrope(tmp_path: Path, family: str) -> None:
    """Where no more than the trained context is served, LongRoPE's short factors hold, as in transformers."""
    folder = make_checkpoint(tmp_path, family)
    prompt = prompt_of(60)
    with torch.inference_mode():
        expected = oracle(folder)(torch.tensor([prompt])).logits[0]
    ops = select_backend("auto", device=CPU, dtype=torch.float32)
    found = logits_of(read_folder(tmp_path, name=family, max_context=64), ops, prompt)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("family", ["llama", "phi3-partial", "gemma2", "gemma3"])
def test_bfloat16_logits_are_as_good_as_transformers(tmp_path: Path, family: str, backend: str) -> None:
    """In bfloat16 the logits are no farther from a float64 oracle than those of transformers in bfloat16."""
    folder = make_checkpoint(tmp_path, family, dtype=torch.bfloat16)
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
    spec = read_spec({**folder.config, "tie_word_embeddings": False})
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        load_weights(folder, spec, ops)


def test_weight_without_a_place_is_refused(tmp_path: Path) -> None:
    """A tensor that the decoder would leave out, and so compute something else, is refused by name."""
    folder = make_checkpoint(tmp_path, "qwen3")
    spec = read_spec({**folder.config, "architectures": ["LlamaForCausalLM"]})
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    with pytest.raises(ModelError, match="k_norm"):
        load_weights(folder, spec, ops)


def test_wrong_shape_is_refused(tmp_path: Path) -> None:
    """A tensor of another shape than config.json says is refused with both shapes."""
    folder = make_checkpoint(tmp_path, "llama")
    spec = read_spec({**folder.config, "intermediate_size": 97})
    ops = select_backend("reference", device=CPU, dtype=torch.float32)
    with pytest.raises(ModelError, match=r"\(96, 64\); config.json says \(97, 64\)"):
        load_weights(folder, spec, ops)
