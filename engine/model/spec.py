"""What a decoder computes, family by family the same words: `engine.model.families` reads it. Free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Config = Mapping[str, Any]  # config.json, or an object in it

Activation = Literal["silu", "gelu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions: `kind` is default, dynamic, linear, llama3, yarn or longrope, `parameters` that kind's own."""

    theta: float
    kind: str = "default"
    parameters: Config
    dim: int  # leading elements of a head that turn; the rest carries no position


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """How one layer sees the context."""

    rope: RopeSpec | None  # None: it knows no positions
    window: int = 0  # tokens; 0: the whole context


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A dense decoder. Sizes count elements; `max_positions` counts tokens."""

    layers: tuple[LayerSpec, ...]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    tied_embeddings: bool
    attention_scale: float
    attention_soft_cap: float = 0.0  # of scores; 0: none
    logit_soft_cap: float = 0.0  # of the logits; 0: none
    embedding_scale: float = 1.0
    activation: Activation = "silu"
    qk_norm: bool = False  # normalises queries and keys per head
    norm_offset: float = 0.0  # what the stored weights of norms leave out
    post_norms: bool = False  # normalises what attention and MLP return, too
    fused_weights: bool = False  # the checkpoint holds QKV as one tensor, gate with up as another

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)
