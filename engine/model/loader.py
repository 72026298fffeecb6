"""Weights of a safetensors folder, fused and packed for the backend that will multiply them."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.model.folder import ModelFolder
from engine.model.spec import DecoderSpec
from kernels.ops import Linear, Ops


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. The QK norms are None where the model has none."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All weights of a decoder."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Linear


def load_weights(folder: ModelFolder, spec: DecoderSpec, ops: Ops) -> DecoderWeights:
    """Read, fuse (QKV, gate with up) and pack all weights.

    Raises:
        ModelError: a tensor is missing, has another shape than config.json says, or would go unused.
    """
    with ExitStack() as stack:
        source = _Source(folder, stack, ops)
        embedding = source.take("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
        layers = tuple(_layer(source, spec, ops, f"model.layers.{index}.") for index in range(spec.num_layers))
        norm = source.take("model.norm.weight", (spec.hidden_size,))
        head = embedding if spec.tied_embeddings else source.take("lm_head.weight", tuple(embedding.shape))
        source.refuse_unused(ignored=("lm_head.weight",) if spec.tied_embeddings else ())
        return DecoderWeights(embedding=embedding, layers=layers, norm=norm, head=ops.pack_linear(head))


def _layer(source: "_Source", spec: DecoderSpec, ops: Ops, prefix: str) -> LayerWeights:
    hidden, wide = spec.hidden_size, spec.intermediate_size
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def linear(names: Iterable[str], outs: Iterable[int], width: int) -> Linear:
        return ops.pack_linear(*source.fused(tuple(names), tuple(outs), width))

    return LayerWeights(
        input_norm=source.take(f"{prefix}input_layernorm.weight", (hidden,)),
        qkv=linear((f"{attention}{part}_proj" for part in "qkv"), (query, kv, kv), hidden),
        query_norm=source.take(f"{attention}q_norm.weight", (spec.head_dim,)) if spec.qk_norm else None,
        key_norm=source.take(f"{attention}k_norm.weight", (spec.head_dim,)) if spec.qk_norm else None,
        output=linear((f"{attention}o_proj",), (hidden,), query),
        post_attention_norm=source.take(f"{prefix}post_attention_layernorm.weight", (hidden,)),
        gate_up=linear((f"{mlp}gate_proj", f"{mlp}up_proj"), (wide, wide), hidden),
        down=linear((f"{mlp}down_proj",), (hidden,), wide),
    )


class _Source:
    """Open weight files; remembers what has been taken."""

    def __init__(self, folder: ModelFolder, stack: ExitStack, ops: Ops) -> None:
        self._ops = ops
        self._path = folder.path
        self._files: dict[str, Any] = {}
        for path in folder.weight_files:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise ModelError(f"{path}: not a whole safetensors file: {error}") from error
            self._files.update(dict.fromkeys(file.keys(), file))
        self._unused = set(self._files)

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor in the ops' dtype on the ops' device."""
        if name not in self._files:
            raise ModelError(f"{self._path}: the weights have no {name}")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{self._path}: {name} has shape {tuple(tensor.shape)}; config.json says {shape}")
        self._unused.discard(name)
        return tensor.to(self._ops.device, self._ops.dtype)

    def fused(
        self, names: tuple[str, ...], outs: tuple[int, ...], width: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weights stacked, and their biases (zeros for a part without one), or None if no part has one."""
        weight = torch.cat([self.take(f"{name}.weight", (out, width)) for name, out in zip(names, outs, strict=True)])
        if not any(f"{name}.bias" in self._files for name in names):
            return weight, None
        biases = [
            self.take(f"{name}.bias", (out,)) if f"{name}.bias" in self._files else weight.new_zeros(out)
            for name, out in zip(names, outs, strict=True)
        ]
        return weight, torch.cat(biases)

    def refuse_unused(self, ignored: tuple[str, ...]) -> None:
        """Raise when a tensor of the file has no place in the decoder: the output would be wrong without a word."""
        left = sorted(name for name in self._unused - set(ignored) if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise ModelError(f"{self._path}: {len(left)} weights have no place in this decoder, such as {left[0]}")
