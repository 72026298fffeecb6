"""The decoder of dense models: one forward over a flat batch of tokens. Driven by `DecoderSpec` alone."""

import torch
import torch.nn.functional as F  # noqa: N812

from engine.model.loader import DecoderWeights, LayerWeights
from engine.model.rope import rope_table
from engine.model.spec import DecoderSpec, LayerSpec, RopeSpec
from kernels.batch import AttentionBatch, AttentionForm
from kernels.ops import Ops
from kernels.pages import LayerPages, Pages, PageShape


class Decoder:
    """Weights and ops together. Holds no state between steps: the pages do."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, ops: Ops, max_positions: int) -> None:
        self._spec = spec
        self._weights = weights
        self._ops = ops
        self._activate = ops.gelu_mul if spec.activation == "gelu" else ops.silu_mul
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=ops.dtype))  # rounded as the models do
        tables: list[tuple[RopeSpec, torch.Tensor]] = []
        self._layers = tuple(
            _Layer(spec, layer, part, _table(tables, layer, spec.head_dim, max_positions, ops.device))
            for layer, part in zip(spec.layers, weights.layers, strict=True)
        )

    def page_shape(self, *, num_blocks: int, block_size: int) -> PageShape:
        """Return the pages that the model's keys and values need."""
        return PageShape(
            num_layers=self._spec.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=self._spec.num_kv_heads,
            head_dim=self._spec.head_dim,
        )

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages, sampled: torch.Tensor
    ) -> torch.Tensor:
        """Compute one step, writing KV into `pages`.

        Args:
            token_ids: `[T]` int64, sequences end to end.
            batch: where each token belongs.
            pages: the KV pool; this step's slots are overwritten.
            sampled: `[N]` int64 indices of the tokens whose logits are wanted.

        Returns:
            Logits `[N, vocab]`.
        """
        spec, ops, eps = self._spec, self._ops, self._spec.norm_eps
        residual = F.embedding(token_ids, self._weights.embedding)
        if self._embedding_scale != 1.0:
            residual.mul_(self._embedding_scale)
        hidden = ops.rms_norm(residual, self._weights.layers[0].attention_norm, eps=eps)
        following = [*(layer.attention_norm for layer in self._weights.layers[1:]), self._weights.norm]
        for layer, layer_pages, next_norm in zip(self._layers, pages.layers, following, strict=True):
            weights = layer.weights
            attended = weights.output(self._attend(hidden, layer, layer_pages, batch))
            attended = self._normal(attended, weights.attention_post_norm)
            hidden = ops.rms_norm(attended, weights.mlp_norm, eps=eps, residual=residual)
            delta = weights.down(self._activate(weights.gate_up(hidden)))
            delta = self._normal(delta, weights.mlp_post_norm)
            hidden = ops.rms_norm(delta, next_norm, eps=eps, residual=residual)
        logits = self._weights.head(hidden[sampled])  # none: [0, vocab]
        return _capped(logits, spec.logit_soft_cap) if spec.logit_soft_cap else logits

    def _normal(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else self._ops.rms_norm(x, weight, eps=self._spec.norm_eps)

    def _attend(self, hidden: torch.Tensor, layer: "_Layer", pages: LayerPages, batch: AttentionBatch) -> torch.Tensor:
        """Return `[T, num_heads * head_dim]`; writes this step's keys and values."""
        spec, ops, weights = self._spec, self._ops, layer.weights
        heads = weights.qkv(hidden).view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        query, key, value = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], 1)
        if weights.query_norm is not None and weights.key_norm is not None:
            query.copy_(ops.rms_norm(query, weights.query_norm, eps=spec.norm_eps))
            key.copy_(ops.rms_norm(key, weights.key_norm, eps=spec.norm_eps))
        if layer.table is None:
            ops.kv_write(key, value, pages, batch.slots)
        else:
            ops.rope_kv_write(heads, layer.table, batch.positions, pages, batch.slots)
        return ops.paged_attention(query, pages, batch, layer.form)


class _Layer:
    """One layer's weights, form of attention and rotary table."""

    def __init__(self, spec: DecoderSpec, layer: LayerSpec, weights: LayerWeights, table: torch.Tensor | None) -> None:
        self.weights = weights
        self.form = AttentionForm(spec.attention_scale, layer.window, spec.attention_soft_cap)
        self.table = table  # None: the layer knows no positions


def _table(
    tables: list[tuple[RopeSpec, torch.Tensor]],
    layer: LayerSpec,
    head_dim: int,
    max_positions: int,
    device: torch.device,
) -> torch.Tensor | None:
    """Return the layer's rotary table, made once for all layers that turn alike."""
    if layer.rope is None:
        return None
    for rope, table in tables:
        if rope == layer.rope:
            return table
    made = rope_table(layer.rope, head_dim=head_dim, max_positions=max_positions).to(device)
    tables.append((layer.rope, made))
    return made


def _capped(logits: torch.Tensor, cap: float) -> torch.Tensor:
    return logits.float().div_(cap).tanh_().mul_(cap)
