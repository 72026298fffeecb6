"""Decoder layers as a backend runs them: composed of the ops here, or in one call where a backend has more to gain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from kernels.batch import AttentionBatch, AttentionForm
from kernels.pages import LayerPages, Pages

if TYPE_CHECKING:
    from kernels.ops import Linear, Ops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """One decoder layer: attention and MLP, each behind a norm. Norms that the model has not are None.

    The norm before the attention is the last thing that the layer before has done; `next_norm` is the next one's.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: Literal["silu", "gelu"]
    form: AttentionForm
    table: torch.Tensor | None  # rotary, see `Ops.rope`; None: the layer knows no positions
    qkv: "Linear"
    query_norm: torch.Tensor | None  # [head_dim]; both or none
    key_norm: torch.Tensor | None
    output: "Linear"
    attention_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: "Linear"
    down: "Linear"
    mlp_post_norm: torch.Tensor | None
    next_norm: torch.Tensor


class LayerStack(Protocol):
    """All layers of a decoder, ready to run."""

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor, pages: Pages, batch: AttentionBatch
    ) -> torch.Tensor:
        """Run the layers over one step and return what the last `next_norm` gives, `[T, hidden]`.

        Args:
            hidden: `[T, hidden]`, normalised for the first layer; may be overwritten.
            residual: `[T, hidden]`, what the norms add up; overwritten.
            pages: the KV pool; this step's slots are overwritten.
            batch: where each token belongs.
        """
        ...


class ComposedLayers:
    """Layers made of the ops, one call each."""

    def __init__(self, ops: "Ops", layers: Sequence[Layer]) -> None:
        self._ops = ops
        self._layers = tuple(layers)

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor, pages: Pages, batch: AttentionBatch
    ) -> torch.Tensor:
        """See `LayerStack.__call__`."""
        ops = self._ops
        for layer, layer_pages in zip(self._layers, pages.layers, strict=True):
            if batch.arrivals is not None:
                batch.arrivals.wait(layer_pages.layer)
            eps, activate = layer.norm_eps, ops.gelu_mul if layer.activation == "gelu" else ops.silu_mul
            attended = layer.output(self._attend(hidden, layer, layer_pages, batch))
            attended = self._normal(attended, layer.attention_post_norm, eps)
            hidden = ops.rms_norm(attended, layer.mlp_norm, eps=eps, residual=residual)
            delta = self._normal(layer.down(activate(layer.gate_up(hidden))), layer.mlp_post_norm, eps)
            hidden = ops.rms_norm(delta, layer.next_norm, eps=eps, residual=residual)
        return hidden

    def _normal(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        return x if weight is None else self._ops.rms_norm(x, weight, eps=eps)

    def _attend(self, hidden: torch.Tensor, layer: Layer, pages: LayerPages, batch: AttentionBatch) -> torch.Tensor:
        """Return `[T, num_heads * head_dim]`; writes this step's keys and values."""
        ops, eps = self._ops, layer.norm_eps
        heads = layer.qkv(hidden).view(-1, layer.num_heads + 2 * layer.num_kv_heads, layer.head_dim)
        query, key, value = torch.split(heads, [layer.num_heads, layer.num_kv_heads, layer.num_kv_heads], 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query.copy_(ops.rms_norm(query, layer.query_norm, eps=eps))
            key.copy_(ops.rms_norm(key, layer.key_norm, eps=eps))
        if layer.table is None:
            ops.kv_write(key, value, pages, batch.slots)
        else:
            ops.rope_kv_write(heads, layer.table, batch.positions, pages, batch.slots)
        return ops.attend(query, pages, batch, layer.form)
