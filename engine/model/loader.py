"""Weights of a safetensors folder, fused and packed for the backend that will multiply them."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from engine.model.folder import ModelFolder
from engine.model.rope import rotary_order
from engine.model.source import DummySource, FileSource, Source
from engine.model.spec import DecoderSpec
from kernels.ops import Linear, Ops


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Norms that the model has not are None."""

    attention_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    attention_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    mlp_post_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All weights of a decoder."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Linear


def load_weights(folder: ModelFolder, spec: DecoderSpec, ops: Ops, *, dummy: bool = False) -> DecoderWeights:
    """Read, fuse (QKV, gate with up) and pack all weights; `dummy`: draw them.

    Raises:
        ModelError: a tensor is missing, has another shape than config.json says, or would go unused.
    """
    if dummy:
        return _load(DummySource(ops), spec, ops)
    with ExitStack() as stack:
        source = FileSource(folder, stack, ops)
        weights = _load(source, spec, ops)
        source.refuse_unused(ignored=("lm_head.weight",) if spec.tied_embeddings else ())
        return weights


def _load(source: Source, spec: DecoderSpec, ops: Ops) -> DecoderWeights:
    embedding = source.take("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
    head = embedding if spec.tied_embeddings else source.take("lm_head.weight", tuple(embedding.shape))
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_Layer(source, spec, ops, index).read() for index in range(spec.num_layers)),
        norm=_norm(source, "model.norm", spec.hidden_size, spec.norm_offset),
        head=ops.pack_linear(head),
    )


class _Layer:
    """Reads one decoder layer."""

    def __init__(self, source: Source, spec: DecoderSpec, ops: Ops, index: int) -> None:
        self._source = source
        self._spec = spec
        self._ops = ops
        self._prefix = f"model.layers.{index}."
        rope = spec.layers[index].rope
        partial = rope is not None and rope.dim < spec.head_dim
        self._order = rotary_order(rope, spec.head_dim) if rope is not None and partial else None

    def read(self) -> LayerWeights:
        """Return the layer."""
        spec, hidden, wide = self._spec, self._spec.hidden_size, self._spec.intermediate_size
        # Llama's name for the norm before the MLP is Gemma's for the one behind the attention.
        before_mlp = "pre_feedforward_layernorm" if spec.post_norms else "post_attention_layernorm"
        gate_up = ("gate_up_proj",) if spec.fused_weights else ("gate_proj", "up_proj")
        return LayerWeights(
            attention_norm=self._norm("input_layernorm", hidden),
            qkv=self._qkv(),
            query_norm=self._head_norm("q_norm"),
            key_norm=self._head_norm("k_norm"),
            output=self._linear("self_attn.", ("o_proj",), (hidden,), spec.num_heads * spec.head_dim),
            attention_post_norm=self._norm("post_attention_layernorm", hidden) if spec.post_norms else None,
            mlp_norm=self._norm(before_mlp, hidden),
            gate_up=self._linear("mlp.", gate_up, (2 * wide // len(gate_up),) * len(gate_up), hidden),
            down=self._linear("mlp.", ("down_proj",), (hidden,), wide),
            mlp_post_norm=self._norm("post_feedforward_layernorm", hidden) if spec.post_norms else None,
        )

    def _qkv(self) -> Linear:
        """Return the fused projection, queries first, in the order of elements that the ops turn."""
        spec = self._spec
        query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        names = ("qkv_proj",) if spec.fused_weights else ("q_proj", "k_proj", "v_proj")
        outs = (query + 2 * kv,) if spec.fused_weights else (query, kv, kv)
        full_names = [f"{self._prefix}self_attn.{name}" for name in names]
        weight, bias = _fused(self._source, full_names, outs, spec.hidden_size)
        return self._ops.pack_linear(self._turned(weight), None if bias is None else self._turned(bias))

    def _turned(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of QKV with each query's and key's elements in rotary order."""
        if self._order is None:
            return rows
        heads = rows.view(-1, self._spec.head_dim, *rows.shape[1:])
        turning = heads[: -self._spec.num_kv_heads, self._order.to(rows.device)]
        return torch.cat((turning, heads[-self._spec.num_kv_heads :])).view(rows.shape)

    def _linear(self, part: str, names: Sequence[str], outs: Sequence[int], width: int) -> Linear:
        return self._ops.pack_linear(*_fused(self._source, [self._prefix + part + name for name in names], outs, width))

    def _norm(self, name: str, width: int) -> torch.Tensor:
        return _norm(self._source, self._prefix + name, width, self._spec.norm_offset)

    def _head_norm(self, name: str) -> torch.Tensor | None:
        if not self._spec.qk_norm:
            return None
        weight = self._norm(f"self_attn.{name}", self._spec.head_dim)
        return weight if self._order is None else weight[self._order.to(weight.device)]


def _norm(source: Source, name: str, width: int, offset: float) -> torch.Tensor:
    """Return a norm's weight, with what its stored form leaves out."""
    weight = source.take(f"{name}.weight", (width,))
    return (weight.float() + offset).to(weight.dtype) if offset else weight


def _fused(
    source: Source, names: Sequence[str], outs: Sequence[int], width: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weights stacked, and their biases (zeros for a part without one), or None if no part has one."""
    weight = torch.cat([source.take(f"{name}.weight", (out, width)) for name, out in zip(names, outs, strict=True)])
    if not any(source.has(f"{name}.bias") for name in names):
        return weight, None
    biases = [
        source.take(f"{name}.bias", (out,)) if source.has(f"{name}.bias") else weight.new_zeros(out)
        for name, out in zip(names, outs, strict=True)
    ]
    return weight, torch.cat(biases)
