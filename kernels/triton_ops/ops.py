"""The Triton backend behind `kernels.ops.Ops`: prepares a launch, runs it. Kernels are in the files beside this one.

On a GPU every tensor stays there and nothing waits for it. Under `TRITON_INTERPRET=1` the same kernels run on the CPU,
thousands of times slower: for tests alone.
"""

import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.batch import AttentionBatch, AttentionForm
from kernels.errors import BackendUnavailable
from kernels.ops import Linear, Ops
from kernels.pages import LayerPages, Pages
from kernels.reference.ops import PlainLinear
from kernels.triton_ops.blocks import copy_launch, gather_launch, scatter_launch
from kernels.triton_ops.decode import decode_launch
from kernels.triton_ops.mask import mask_launch
from kernels.triton_ops.merge import merge_kernel, merge_launch
from kernels.triton_ops.norm import rms_norm_launch
from kernels.triton_ops.prefill import prefill_launch
from kernels.triton_ops.rope import rope_launch
from kernels.triton_ops.sample import sample_launch
from kernels.triton_ops.silu import gelu_mul_launch, silu_mul_launch
from kernels.triton_ops.top_k import top_k
from kernels.triton_ops.write import kv_write_launch, rope_kv_write_launch

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OLDEST = 80  # compute capability, tens and ones


class TritonOps(Ops):
    """Triton kernels on a CUDA GPU, matrix products by cuBLAS."""

    name = "triton"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """Take the GPU's generation.

        Raises:
            BackendUnavailable: no such GPU, too old a one, or a dtype that the kernels don't compute.
        """
        if dtype not in _DTYPES:
            raise BackendUnavailable(f"the Triton kernels compute float32, float16 and bfloat16, not {dtype}")
        super().__init__(device, dtype)
        self._capability = _capability(device)

    def kv_write(self, key: torch.Tensor, value: torch.Tensor, pages: LayerPages, slots: torch.Tensor) -> None:
        """See `Ops.kv_write`."""
        kv_write_launch(key, value, pages, slots).run()

    def rope_kv_write(
        self, heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, pages: LayerPages, slots: torch.Tensor
    ) -> None:
        """See `Ops.rope_kv_write`: one kernel."""
        rope_kv_write_launch(heads, table, positions, pages, slots).run()

    def paged_attention(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> torch.Tensor:
        """See `Ops.paged_attention`: decodes by split KV, anything longer by tiles of rows."""
        num_decodes = batch.num_sequences if batch.max_query == 1 else batch.num_decodes
        if num_decodes == batch.num_sequences:
            return self._decodes(query, pages, batch, form).flatten(1)
        launch, out, _ = prefill_launch(query, pages, batch, form, self._capability)
        launch.run()
        if num_decodes:
            out[:num_decodes] = self._decodes(query[:num_decodes], pages, batch, form)
        return out.flatten(1)

    def _decodes(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> torch.Tensor:
        launch, parts, lse = decode_launch(query, pages, batch, form, self._capability)
        launch.run()
        return parts[0] if parts.shape[0] == 1 else self.merge_partials(parts, lse)

    def partial_attention(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.partial_attention`: one part of a chunk, of decodes as many as their KV is split in."""
        num_decodes = batch.num_sequences if batch.max_query == 1 else batch.num_decodes
        if num_decodes == batch.num_sequences:
            launch, out, lse = decode_launch(query, pages, batch, form, self._capability, wide=True)
            launch.run()
            return out, lse
        launch, chunks, chunks_lse = prefill_launch(query, pages, batch, form, self._capability, wide=True)
        launch.run()
        if not num_decodes:
            return chunks[None], chunks_lse[None]
        launch, out, lse = decode_launch(query[:num_decodes], pages, batch, form, self._capability, wide=True)
        launch.run()
        parts = chunks.new_empty((len(out), *chunks.shape))
        every = chunks_lse.new_full((len(out), *chunks_lse.shape), float("-inf"))
        parts[:, :num_decodes], every[:, :num_decodes] = out, lse
        parts[0, num_decodes:], every[0, num_decodes:] = chunks[num_decodes:], chunks_lse[num_decodes:]
        return parts, every

    def merge_partials(
        self, parts: torch.Tensor, lse: torch.Tensor, *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """See `Ops.merge_partials`."""
        launch, out = merge_launch(parts, lse, dtype or self.dtype)
        launch.run()
        return out

    def gather_blocks(
        self,
        pages: Pages,
        blocks: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Ops.gather_blocks`. `out` may lie in pinned host memory."""
        launch, slabs = gather_launch(pages, blocks, out, places)
        launch.run()
        return slabs

    def scatter_blocks(
        self, slabs: torch.Tensor, pages: Pages, blocks: torch.Tensor, *, places: torch.Tensor | None = None
    ) -> None:
        """See `Ops.scatter_blocks`. `slabs` may lie in pinned host memory."""
        scatter_launch(slabs, pages, blocks, places).run()

    def copy_blocks(self, pages: Pages, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """See `Ops.copy_blocks`."""
        copy_launch(pages, sources, targets).run()

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, *, eps: float, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        launch, out = rms_norm_launch(x, weight, eps, residual)
        launch.run()
        return out

    def rope(self, heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> None:
        """See `Ops.rope`."""
        rope_launch(heads, table, positions).run()

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.silu_mul`."""
        launch, out = silu_mul_launch(gate_up)
        launch.run()
        return out

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.gelu_mul`."""
        launch, out = gelu_mul_launch(gate_up)
        launch.run()
        return out

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See `Ops.argmax`."""
        return logits.argmax(-1)

    def top_k(
        self, logits: torch.Tensor, k: int, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.top_k`."""
        return top_k(logits if rows is None else logits[rows], k)

    def logprobs(self, logits: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops.logprobs`."""
        own = logits if rows is None else logits[rows]
        return own.float().log_softmax(-1).gather(-1, tokens)

    def sample(self, logits: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
        """See `Ops.sample`."""
        launch, out = sample_launch(logits.contiguous(), how)
        launch.run()
        return out

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
        """See `Ops.mask`."""
        mask_launch(logits, rows, words).run()

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """See `Ops.pack_linear`: the weight as it is; cuBLAS needs no other order."""
        weight = weight.to(self.device, self.dtype)
        return PlainLinear(weight, None if bias is None else bias.to(self.device, self.dtype))


def _capability(device: torch.device) -> int:
    if device.type == "cpu" and isinstance(merge_kernel, InterpretedFunction):
        return OLDEST
    if device.type != "cuda":
        raise BackendUnavailable(f"the Triton kernels run on CUDA, not on {device}")
    major, minor = torch.cuda.get_device_capability(device)
    if 10 * major + minor < OLDEST:
        raise BackendUnavailable(f"the Triton kernels need compute capability 8.0, this GPU has {major}.{minor}")
    return 10 * major + minor
