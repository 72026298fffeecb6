"""The model as the runner sees it, and the choice of who computes it: our decoder, or `transformers`' own class."""

import logging
from typing import Protocol

import torch

from engine.errors import ModelError
from engine.model.decoder import Decoder
from engine.model.families import read_spec
from engine.model.folder import ModelFolder
from engine.model.loader import load_weights
from kernels.batch import AttentionBatch
from kernels.ops import Ops
from kernels.pages import Pages, PageShape

_log = logging.getLogger("tollgate.model")


class Model(Protocol):
    """Computes steps over pages; holds no state between them."""

    recordable: bool
    """Whether a step launches the same whatever its tensors hold, so that a graph of it can be replayed."""

    embedding_size: int
    """Numbers of a token's hidden state; 0: `hidden` and `logits` are not to be had one without the other."""

    def page_shape(self, *, num_blocks: int, block_size: int) -> PageShape:
        """Return the pages that the model's keys and values need."""
        ...

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages, sampled: torch.Tensor
    ) -> torch.Tensor:
        """Compute one step, see `Decoder.forward`."""
        ...

    def hidden(self, token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages) -> torch.Tensor:
        """Compute one step up to the head, see `Decoder.hidden`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of hidden states, see `Decoder.logits`."""
        ...


def load_model(folder: ModelFolder, ops: Ops, *, dummy: bool = False) -> Model:
    """Load the folder's model for `ops` and say in the log which path serves it.

    Args:
        folder: the model on disk.
        ops: who computes, where, in which dtype.
        dummy: draw random weights of the configuration's shapes and read none.

    Raises:
        ModelError: the weights don't fit the configuration, or the model cannot run over pages.
    """
    spec = read_spec(folder.config)
    weights = "random weights (ENGINE_LOAD_FORMAT=dummy)" if dummy else "its weights"
    if spec is None:
        if ops.weights != "auto":
            raise ModelError(
                f"ENGINE_WEIGHT_DTYPE={ops.weights}: {folder.architecture} runs through the class of transformers, "
                "whose weights stay whole; leave it at auto"
            )
        _log.warning(
            "model: %s runs through the class of transformers with %s over our pages: right, but slower than a family "
            "of our own decoder (docs/models.md)",
            folder.architecture,
            weights,
        )
        from engine.model.fallback import load_fallback  # here, not above: it imports transformers, which takes seconds

        return load_fallback(folder, ops, dummy=dummy)
    _log.info("model: %s runs in our own decoder with %s", folder.architecture, weights)
    return Decoder(spec, load_weights(folder, spec, ops, dummy=dummy), ops, folder.max_context_tokens)
