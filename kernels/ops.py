"""The ops of the decoder, one method each, and the choice of who computes them. START HERE.

    ops = select_backend("auto", device=torch.device("cpu"), dtype=torch.bfloat16)
    hidden = ops.rms_norm(hidden, weight, eps)

Every backend has the same signatures; `reference` is the oracle of the others. Shapes: T tokens, H heads, D head size,
S sequences. Tensors are of the ops' dtype on the ops' device unless said otherwise.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch

from kernels.batch import AttentionBatch, AttentionForm
from kernels.errors import BackendUnavailable
from kernels.layers import ComposedLayers, Layer, LayerStack
from kernels.pages import LayerPages, Pages, PageShape
from kernels.quantised import WeightDtype

BackendName = Literal["auto", "reference", "cpu", "triton"]

_log = logging.getLogger("tollgate.kernels")


class Linear(ABC):
    """A weight in the form its backend multiplies fastest."""

    out_features: int

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ weight.T + bias`: `[T, in] -> [T, out]`."""


class Ops(ABC):
    """One backend on one device in one dtype."""

    name: str
    reads_slabs = False  # whether `paged_attention` knows `AttentionBatch.hosted`

    def __init__(self, device: torch.device, dtype: torch.dtype, weights: WeightDtype = "auto") -> None:
        self.device = device
        self.dtype = dtype
        self.weights = weights  # what the linears hold

    def empty_pages(self, shape: PageShape) -> Pages:
        """Reserve the KV pool of a model."""
        return Pages.empty(shape, self.dtype, self.device)

    @abstractmethod
    def kv_write(self, key: torch.Tensor, value: torch.Tensor, pages: LayerPages, slots: torch.Tensor) -> None:
        """Store `key` and `value` `[T, H_kv, D]` in the slots `[T]` (int64) of one layer; slot -1 stores nothing.

        Rows may be strided; the last two dimensions are contiguous.
        """

    def rope_kv_write(
        self, heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, pages: LayerPages, slots: torch.Tensor
    ) -> None:
        """Rotate the queries of `heads` `[T, H + 2 * H_kv, D]` in place, and store rotated keys and values in `slots`.

        Whether the keys in `heads` are rotated too is the backend's own affair: attention reads them from the pages.
        """
        kv_heads = pages.shape.num_kv_heads
        self.rope(heads[:, :-kv_heads], table, positions)
        self.kv_write(heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:], pages, slots)

    @abstractmethod
    def paged_attention(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> torch.Tensor:
        """Return causal attention of `query` `[T, H, D]` over each sequence's own pages: `[T, H * D]`.

        Query head h reads KV head `h // (H / H_kv)`. Blocks of `batch.hosted` are read from its slabs. Slots past a
        sequence's context, or before the window of all its queries, are never read into the result.
        """

    @abstractmethod
    def partial_attention(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return attention over parts of each sequence's context, for `merge_partials` to join with other parts.

        Tokens from `batch.limits` on are not there, so that a query may lie behind all of them, and see none.

        Returns:
            P parts, normalised, `[P, T, H, D]` float32, and their log-sum-exp of scores `[P, T, H]` float32: -inf for
            a part of which a query sees nothing, whatever is in it then. P is the backend's own affair.
        """

    @abstractmethod
    def merge_partials(
        self, parts: torch.Tensor, lse: torch.Tensor, *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Join attention over P parts of a context: `parts` `[P, T, H, D]`, normalised, to `[T, H, D]`.

        `lse`: `[P, T, H]` float32, each part's log-sum-exp of scores; a part of -inf counts nothing, whatever is in it.
        `dtype`: of the result, float32 or the ops'; None: the ops'.
        """

    def attend(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> torch.Tensor:
        """Return `paged_attention`, wherever the blocks of the batch are."""
        if batch.stream is not None:
            return batch.stream.attend(query, pages, form)
        return self.paged_attention(query, pages, batch, form)

    @abstractmethod
    def gather_blocks(
        self,
        pages: Pages,
        blocks: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Copy blocks `[N]` (int64) into slabs, each all layers of one block: `[N, num_layers, block_elements]`.

        `out` `[M, num_layers, block_elements]`, which is returned then, takes them where they belong: in its rows
        `places` `[N]` (int64), each named once, or in its first N. A slab in it need not be contiguous, a layer must.
        """

    @abstractmethod
    def scatter_blocks(
        self, slabs: torch.Tensor, pages: Pages, blocks: torch.Tensor, *, places: torch.Tensor | None = None
    ) -> None:
        """Write slabs, as `gather_blocks` made them, to blocks `[N]` (int64), each named once.

        `places` `[N]` (int64) says which of `slabs`, None: the first N.
        """

    def beside(self) -> "Ops":
        """Return these ops for a thread beside the one that computes: its copies take no other thread's core."""
        return self

    @abstractmethod
    def copy_blocks(self, pages: Pages, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy blocks in every layer, `[N]` int64 each; targets are distinct, and none is a source of the same call."""

    @abstractmethod
    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, *, eps: float, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return `x / sqrt(mean(x²) + eps) * weight` over the last dimension.

        With `residual`, `residual += x` comes first, in place, and the sum is what is normalised.
        """

    @abstractmethod
    def rope(self, heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> None:
        """Rotate `heads` `[T, H, D]` in place, first half against second half of D.

        `table`: `[max_positions, D]` float32, cosines then sines of each position. `positions`: `[T]` int32.
        """

    @abstractmethod
    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return `silu(gate) * up` of `[T, 2 * I]`, gate first: `[T, I]`."""

    @abstractmethod
    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return `gelu(gate) * up` of `[T, 2 * I]`, gate first, gelu by its tanh formula: `[T, I]`."""

    @abstractmethod
    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the first best token of each row of `logits` `[N, V]`: int64 `[N]`.

        Here and in the other ops over logits they are contiguous, of the ops' dtype or float32. NaN is greater than all
        else, as in torch.
        """

    @abstractmethod
    def top_k(
        self, logits: torch.Tensor, k: int, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the `k` best logits of each row, falling, and their tokens: float32 and int64 `[M, k]`.

        Equal ones are ranked by token. `rows` `[M]` int64 names those of `logits` `[N, V]` that count; None: all.
        """

    @abstractmethod
    def logprobs(self, logits: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Return the log-softmax of `logits` `[N, V]` at `tokens` `[M, K]` int64: float32 `[M, K]`.

        `rows`: see `top_k`.
        """

    @abstractmethod
    def sample(self, logits: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
        """Draw a token for each row of `logits` `[N, V]`: int64 `[N]`. Nothing waits for the device.

        `how` `[N, 5]` float64 has for each row its

        - temperature: 0 takes the first best token, as does a row whose best logit is not finite;
        - top_k: only so many best tokens have a weight, 0 for all of them;
        - top_p: of those, only the best whose weights together reach this share of all, 1 for all of them;
        - number in [0, 1): drawn is the first token whose cumulative weight, in the order of ids, exceeds this share;
        - floor: tokens whose weight has a natural logarithm under this, at most 0, are left out of that; -inf for none.

        A weight is `exp((logit - best) / temperature)`, and nothing under e^-87. The best come first, equal logits by
        token; the best one always counts. A row's token depends on nothing else in the batch.
        """

    @abstractmethod
    def mask(self, logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
        """Put -inf into `logits` `[N, V]`, contiguous, wherever the bit of a row's mask is 0, in place.

        `rows` `[M]` int64 names the rows that have one, each once; `words` `[M, ceil(V / 32)]` int32: bit `i % 32` of
        word `i // 32` is token `i`'s.
        """

    @abstractmethod
    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Prepare `weight` `[out, in]` (and `bias` `[out]`) once, at load."""

    def pack_layers(self, layers: Sequence[Layer]) -> LayerStack:
        """Prepare the layers of a decoder once, at load."""
        return ComposedLayers(self, layers)


def select_backend(
    name: BackendName, *, device: torch.device, dtype: torch.dtype, weights: WeightDtype = "auto"
) -> Ops:
    """Choose who computes, once, and say so in the log. `weights`: what the linears hold, "auto" for `dtype`.

    `auto` takes Triton on a GPU, and on a CPU the C++ kernels where they can be built, else the reference; a backend
    asked for by name is used or refused, never replaced.

    Raises:
        BackendUnavailable: the named backend cannot run here, or has no such weights.
    """
    from kernels.reference.ops import ReferenceOps  # here, not above: backends import this module

    if name == "reference":
        _log.info("kernels: reference on %s", device)
        return ReferenceOps(device, dtype, weights)
    if name == "triton" or device.type == "cuda":
        if weights != "auto":
            raise BackendUnavailable(f"{weights} weights are computed on the CPU alone")
        try:
            return _triton_backend(device, dtype)
        except BackendUnavailable as reason:
            if name == "triton":
                raise
            _log.warning("kernels: the reference serves, many times slower than Triton: %s", reason)
    elif name == "cpu" or device.type == "cpu":
        try:
            return _cpu_backend(device, dtype, weights)
        except BackendUnavailable as reason:
            if name == "cpu":
                raise
            _log.warning("kernels: the reference serves, several times slower than C++: %s", reason)
    else:
        _log.warning("kernels: reference on %s: no backend is made for it", device)
    return ReferenceOps(device, dtype, weights)


def _triton_backend(device: torch.device, dtype: torch.dtype) -> Ops:
    try:
        from kernels.triton_ops.ops import TritonOps
    except ImportError as error:
        raise BackendUnavailable(f"triton cannot be imported: {error}; install the triton of this torch") from error

    ops = TritonOps(device, dtype)
    _log.info("kernels: Triton on %s", device)
    return ops


def _cpu_backend(device: torch.device, dtype: torch.dtype, weights: WeightDtype) -> Ops:
    from kernels.cpu.ops import CpuOps

    ops = CpuOps.load(device, dtype, weights=weights)
    _log.info("kernels: C++ on cpu, %s%s", ops.instructions, "" if weights == "auto" else f", {weights} weights")
    return ops
