"""Any other causal LM: `transformers`' own class computes it, attention and KV are ours. START HERE: `load_fallback`.

A model is served only if it can be: its attention goes through transformers' attention interface, and nothing but keys
and values lives on between tokens. `engine.model.trial` tries that at load, against the model's own attention.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from engine.errors import ModelError
from engine.model.folder import ModelFolder
from engine.model.halves import Halves
from engine.model.paged_modules import NAME, PagedAttention, connect
from engine.model.trial import Layout, check_config, compare, hidden_size, measure
from kernels.batch import AttentionBatch
from kernels.ops import Ops
from kernels.pages import Pages, PageShape


class FallbackModel:
    """A model of transformers over our pages. Holds no state between steps: the pages do."""

    recordable = False  # a class may choose by values, as experts do

    def __init__(self, model: PreTrainedModel, layout: Layout, ops: Ops) -> None:
        self._model = model
        self._layout = layout
        self._attention = PagedAttention(ops)
        self._picks = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._halves = Halves(model)
        self.embedding_size = 0  # until it was tried
        connect(model, self._attention)

    def page_shape(self, *, num_blocks: int, block_size: int) -> PageShape:
        """Return the pages that the model's keys and values need."""
        layers, kv_heads, dim = self._layout
        return PageShape(
            num_layers=layers, num_blocks=num_blocks, block_size=block_size, num_kv_heads=kv_heads, head_dim=dim
        )

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages, sampled: torch.Tensor
    ) -> torch.Tensor:
        """Compute one step, writing KV into `pages`; see `Decoder.forward`."""
        self._attention.begin(batch, pages)
        keep = {"logits_to_keep": sampled} if self._picks else {}
        logits: torch.Tensor = self._model(
            token_ids[None], position_ids=batch.positions.long()[None], use_cache=False, **keep
        ).logits[0]
        return logits if self._picks else logits[sampled]

    def hidden(self, token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages) -> torch.Tensor:
        """Compute one step up to the head, see `Decoder.hidden`. What its class does with one token's goes to waste."""
        one = torch.zeros(1, dtype=torch.int64, device=token_ids.device)
        return self._halves.hidden(lambda: self.forward(token_ids, batch, pages, one))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of hidden states, see `Decoder.logits`."""
        return self._halves.logits(hidden)


def load_fallback(folder: ModelFolder, ops: Ops, *, dummy: bool = False) -> FallbackModel:
    """Load the folder's model and try it.

    Raises:
        ModelError: it cannot be loaded, or cannot run over pages; says why and what to do.
    """
    try:
        model = _build(folder, ops) if dummy else _load(folder, ops)
        model = model.to(ops.device).eval()
        check_config(model, folder.max_context_tokens)
        with _translated("its class fails on a trial"):
            fallback = FallbackModel(model, measure(model, ops), ops)
            compare(model, fallback, ops)
            fallback.embedding_size = hidden_size(model, fallback, ops)
    except ModelError as error:
        raise ModelError(
            f"{folder.architecture} cannot be served: {error}; choose a model of docs/models.md, or another class of "
            "transformers that uses its attention interface"
        ) from error
    return fallback


def _load(folder: ModelFolder, ops: Ops) -> PreTrainedModel:
    """Read the weights; what transformers would leave random or unused is refused."""
    transformers_logging.disable_progress_bar()
    with _translated(f"transformers cannot load {folder.path}"):
        model, report = AutoModelForCausalLM.from_pretrained(
            folder.path,
            dtype=ops.dtype,
            attn_implementation=NAME,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := sorted(map(str, report.get(kind) or ())):
            raise ModelError(f"{folder.path}: {len(names)} {kind.replace('_', ' ')} of its weights, such as {names[0]}")
    assert isinstance(model, PreTrainedModel)
    return model


def _build(folder: ModelFolder, ops: Ops) -> PreTrainedModel:
    """Make the model with the random weights that its class begins with."""
    with _translated(f"transformers cannot load {folder.path}"), ops.device:
        config: Any = AutoConfig.from_pretrained(folder.path, local_files_only=True)
        model = AutoModelForCausalLM.from_config(config, dtype=ops.dtype, attn_implementation=NAME)
    assert isinstance(model, PreTrainedModel)
    return model


@contextmanager
def _translated(failure: str) -> Iterator[None]:
    """Turn what a wrong folder, or a class without the interface, makes transformers raise into our error."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RuntimeError, ImportError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if isinstance(error, KeyError) and NAME in str(error):
            reason = "its class does not use the attention interface"
        raise ModelError(f"{failure}: {reason}") from error
