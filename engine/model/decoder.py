"""The decoder of the Llama family: one forward over a flat batch of tokens. Driven by `DecoderSpec` alone."""

import torch
import torch.nn.functional as F  # noqa: N812

from engine.model.loader import DecoderWeights, LayerWeights
from engine.model.rope import rope_table
from engine.model.spec import DecoderSpec
from kernels.batch import AttentionBatch, AttentionForm
from kernels.ops import Ops
from kernels.pages import LayerPages, Pages


class Decoder:
    """Weights and ops together. Holds no state between steps: the pages do."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, ops: Ops, max_positions: int) -> None:
        self._spec = spec
        self._weights = weights
        self._ops = ops
        self._form = AttentionForm(spec.head_dim**-0.5)
        table = rope_table(spec.rope, head_dim=spec.head_dim, max_positions=max_positions)
        self._rope = table.to(ops.device)

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
        ops, weights, eps = self._ops, self._weights, self._spec.norm_eps
        residual = F.embedding(token_ids, weights.embedding)
        hidden = ops.rms_norm(residual, weights.layers[0].input_norm, eps=eps)
        following = [*(layer.input_norm for layer in weights.layers[1:]), weights.norm]
        for layer, layer_pages, next_norm in zip(weights.layers, pages.layers, following, strict=True):
            attended = layer.output(self._attend(hidden, layer, layer_pages, batch))
            hidden = ops.rms_norm(attended, layer.post_attention_norm, eps=eps, residual=residual)
            delta = layer.down(ops.silu_mul(layer.gate_up(hidden)))
            hidden = ops.rms_norm(delta, next_norm, eps=eps, residual=residual)
        return weights.head(hidden[sampled])  # none: [0, vocab]

    def _attend(
        self, hidden: torch.Tensor, layer: LayerWeights, pages: LayerPages, batch: AttentionBatch
    ) -> torch.Tensor:
        """Return `[T, num_heads * head_dim]`; writes this step's keys and values."""
        spec, ops = self._spec, self._ops
        heads = layer.qkv(hidden).view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        query, key, _ = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query.copy_(ops.rms_norm(query, layer.query_norm, eps=spec.norm_eps))
            key.copy_(ops.rms_norm(key, layer.key_norm, eps=spec.norm_eps))
        ops.rope_kv_write(heads, self._rope, batch.positions, pages, batch.slots)
        return ops.paged_attention(query, pages, batch, self._form)
