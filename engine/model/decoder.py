"""The decoder of dense models: one forward over a flat batch of tokens. Driven by `DecoderSpec` alone."""

import torch
import torch.nn.functional as F  # noqa: N812

from engine.model.loader import DecoderWeights, LayerWeights
from engine.model.rope import rope_table
from engine.model.spec import DecoderSpec, LayerSpec, RopeSpec
from kernels.batch import AttentionBatch, AttentionForm
from kernels.layers import Layer
from kernels.ops import Ops
from kernels.pages import Pages, PageShape


class Decoder:
    """Weights and ops together. Holds no state between steps: the pages do."""

    recordable = True

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, ops: Ops, max_positions: int) -> None:
        self.embedding_size = spec.hidden_size
        self._spec = spec
        self._weights = weights
        self._ops = ops
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=ops.dtype))  # rounded as the models do
        tables: list[tuple[RopeSpec, torch.Tensor]] = []
        following = [*(layer.attention_norm for layer in weights.layers[1:]), weights.norm]
        self._layers = ops.pack_layers(
            [
                _layer(spec, own, part, _table(tables, own, spec.head_dim, max_positions, ops.device), next_norm)
                for own, part, next_norm in zip(spec.layers, weights.layers, following, strict=True)
            ]
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
        return self.logits(self.hidden(token_ids, batch, pages)[sampled])

    def hidden(self, token_ids: torch.Tensor, batch: AttentionBatch, pages: Pages) -> torch.Tensor:
        """Compute one step up to the head: hidden states after the last norm, `[T, H]`; see `forward`."""
        spec, ops = self._spec, self._ops
        residual = F.embedding(token_ids, self._weights.embedding)
        if self._embedding_scale != 1.0:
            residual.mul_(self._embedding_scale)
        hidden = ops.rms_norm(residual, self._weights.layers[0].attention_norm, eps=spec.norm_eps)
        return self._layers(hidden, residual, pages, batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of hidden states: `[N, H]` to `[N, vocab]`, of none too."""
        spec = self._spec
        logits = self._weights.head(hidden)
        return _capped(logits, spec.logit_soft_cap) if spec.logit_soft_cap else logits


def _layer(
    spec: DecoderSpec, own: LayerSpec, weights: LayerWeights, table: torch.Tensor | None, next_norm: torch.Tensor
) -> Layer:
    """Return one layer as the kernels run it."""
    return Layer(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        norm_eps=spec.norm_eps,
        activation=spec.activation,
        form=AttentionForm(spec.attention_scale, own.window, spec.attention_soft_cap),
        table=table,
        qkv=weights.qkv,
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        output=weights.output,
        attention_post_norm=weights.attention_post_norm,
        mlp_norm=weights.mlp_norm,
        gate_up=weights.gate_up,
        down=weights.down,
        mlp_post_norm=weights.mlp_post_norm,
        next_norm=next_norm,
    )


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
