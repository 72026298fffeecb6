"""The reference backend: every op in a few lines of torch, arithmetic in float32, results in the ops' dtype."""

import torch
import torch.nn.functional as F  # noqa: N812

from kernels.batch import AttentionBatch, AttentionForm
from kernels.ops import Linear, Ops
from kernels.pages import LayerPages, Pages
from kernels.quantised import quantise
from kernels.reference import attention, sampling


class PlainLinear(Linear):
    """`F.linear` over the weight as it came."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ weight.T + bias`."""
        return F.linear(x, self._weight, self._bias)


class Int8Linear(Linear):
    """A weight in eight bits; products and sums in float32, the scale at the end."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self._weight = quantise(weight)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ (values * scale).T + bias`."""
        out = F.linear(x.float(), self._weight.values.float()) * self._weight.scale
        return (out if self._bias is None else out + self._bias.float()).to(x.dtype)


class ReferenceOps(Ops):
    """Torch on any device."""

    name = "reference"
    reads_slabs = True

    def kv_write(self, key: torch.Tensor, value: torch.Tensor, pages: LayerPages, slots: torch.Tensor) -> None:
        """See `Ops.kv_write`."""
        attention.kv_write(key, value, pages, slots)

    def paged_attention(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> torch.Tensor:
        """See `Ops.paged_attention`."""
        return attention.paged_attention(query, pages, batch, form)

    def partial_attention(
        self, query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.partial_attention`; one part."""
        out, lse = attention.partial_attention(query, pages, batch, form)
        return out[None], lse[None]

    def merge_partials(
        self, parts: torch.Tensor, lse: torch.Tensor, *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """See `Ops.merge_partials`. Source: FlashInfer (arXiv 2501.01005), section 2.2."""
        weights = (lse - lse.amax(0)).exp().unsqueeze(-1)  # [P, T, H, 1]
        counted = parts.float().masked_fill(weights == 0, 0.0)
        return ((weights * counted).sum(0) / weights.sum(0)).to(dtype or self.dtype)

    def gather_blocks(
        self,
        pages: Pages,
        blocks: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Ops.gather_blocks`."""
        slabs = pages.data[:, blocks].transpose(0, 1).contiguous()
        if out is None:
            return slabs
        out[slice(len(blocks)) if places is None else places.to(out.device)] = slabs.to(out.device)
        return out

    def scatter_blocks(
        self, slabs: torch.Tensor, pages: Pages, blocks: torch.Tensor, *, places: torch.Tensor | None = None
    ) -> None:
        """See `Ops.scatter_blocks`."""
        own = slabs[slice(len(blocks)) if places is None else places.to(slabs.device)]
        pages.data[:, blocks] = own.transpose(0, 1).to(pages.data.device)

    def copy_blocks(self, pages: Pages, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """See `Ops.copy_blocks`."""
        pages.data[:, targets] = pages.data[:, sources]

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, *, eps: float, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        if residual is not None:
            x = residual.add_(x)
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (normal * weight.float()).to(x.dtype)

    def rope(self, heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> None:
        """See `Ops.rope`. Source: RoFormer (arXiv 2104.09864), halves paired as in Llama."""
        cos, sin = table[positions.long()].unsqueeze(1).chunk(2, -1)  # [T, 1, D / 2] each
        first, second = heads.float().chunk(2, -1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.silu_mul`."""
        gate, up = gate_up.float().chunk(2, -1)
        return (F.silu(gate) * up).to(gate_up.dtype)

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.gelu_mul`. Source: GELU (arXiv 1606.08415), the tanh formula, as Gemma uses it."""
        gate, up = gate_up.float().chunk(2, -1)
        return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See `Ops.argmax`."""
        return logits.argmax(-1)

    def top_k(
        self, logits: torch.Tensor, k: int, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.top_k`."""
        return sampling.top_k(logits if rows is None else logits[rows], k)

    def logprobs(self, logits: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops.logprobs`. On a CPU torch's float32 sums over a vocabulary are off by more than is allowed."""
        own = logits if rows is None else logits[rows]
        return own.double().log_softmax(-1).gather(-1, tokens).float()

    def sample(self, logits: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
        """See `Ops.sample`."""
        return sampling.sample(logits, how)

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
        """See `Ops.mask`."""
        sampling.mask(logits, rows, words)

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """See `Ops.pack_linear`."""
        linear = Int8Linear if self.weights == "int8" else PlainLinear
        weight = weight.to(self.device, self.dtype)
        return linear(weight, None if bias is None else bias.to(self.device, self.dtype))
