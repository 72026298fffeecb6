"""The flat batch of one step: tokens of all sequences end to end, and where each sequence's KV lies."""

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.pages import LayerPages


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How scores become weights: the part of attention's arguments that no tensor carries."""

    scale: float
    window: int = 0  # a token sees itself and the `window - 1` tokens before it; 0: all of them
    soft_cap: float = 0.0  # scores become `soft_cap * tanh(score / soft_cap)`; 0: they stay. Gemma 2 (arXiv 2408.00118)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """Leading blocks of sequences that lie in slabs: attention reads them there. C slabs at most of a sequence."""

    slabs: torch.Tensor  # [num_slabs, num_layers, block_elements]
    table: torch.Tensor  # [S, C] int32: slabs of each sequence
    tokens: torch.Tensor  # [S] int32: how many of its tokens they hold, whole blocks


class Stream(Protocol):
    """Attention of a step some of whose blocks are brought to the device for it, layer by layer."""

    def attend(self, query: torch.Tensor, pages: LayerPages, form: AttentionForm) -> torch.Tensor:
        """Return what `Ops.paged_attention` would, were all blocks in the pages."""
        ...


class Arrivals(Protocol):
    """Layers of the pages that arrive while a step computes: each waits for its own before it reads or writes them."""

    counter: torch.Tensor | None  # [1] int64: how many layers are there; None: only `wait` tells
    waited: torch.Tensor | None  # [1] float64: seconds, to which who looks at `counter` adds its waits

    def wait(self, layer: int) -> None:
        """Let what is launched from now on wait for a layer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Which tokens belong to which sequence. T tokens, S sequences; all tensors on the compute device.

    Sequence s owns tokens `[query_starts[s], query_starts[s + 1])`; they are the last ones of its `contexts[s]` tokens,
    and their KV is written before attention reads it. Decodes (one token each) may be mixed with prefill chunks.
    """

    positions: torch.Tensor  # [T] int32: each token's place in its sequence
    slots: torch.Tensor  # [T] int64: block * block_size + offset; -1: do not write this token
    query_starts: torch.Tensor  # [S + 1] int32
    contexts: torch.Tensor  # [S] int32: tokens of the sequence, this step's included
    rows: torch.Tensor  # [S] int32: row of the block table
    block_table: torch.Tensor  # [max_rows, max_columns] int32: block ids, the persistent table
    max_query: int  # longest query of the batch
    max_context: int  # longest context of the batch, or more: a recorded step serves any up to it
    num_decodes: int = 0  # so many leading sequences have one token: a backend may split their KV
    arrivals: Arrivals | None = None  # None: all layers are there
    hosted: Hosted | None = None  # for backends that read slabs, see `Ops.reads_slabs`
    stream: Stream | None = None  # for the others: it answers attention then
    limits: torch.Tensor | None = None  # [S] int32: how many leading tokens of each are in these pages; None: all. Only
    # `Ops.partial_attention` knows it, and `max_context` is the largest of them then

    @property
    def num_sequences(self) -> int:
        """Sequences of the batch."""
        return self.rows.shape[0]
