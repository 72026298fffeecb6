"""Our paged attention as the attention function of `transformers`' models, registered there once, on import.

A model's attention modules carry an `Attending` that takes their queries, keys and values; the function finds it on the
module that calls it, since not every model passes further arguments down.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine.errors import ModelError
from kernels.batch import AttentionBatch, AttentionForm
from kernels.ops import Ops
from kernels.pages import Pages

NAME = "tollgate_paged"
_CARRIER = "tollgate"  # the attribute of a module that holds its `Attending`
# Arguments that say nothing about what is attended to.
_HARMLESS = frozenset(
    {
        *("dropout", "position_ids", "cache_position", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_router_logits"),
    }
)


class Attending(Protocol):
    """Answers a layer's attention: queries and keys `[T, H, D]`, values `[T, H_kv, D_v]` to `[T, H, D_v]`."""

    def attend(
        self, layer: int, form: AttentionForm, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Return what the layer's tokens attend to."""
        ...


class PagedAttention:
    """Attention over the pages of one step after the other."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._batch: AttentionBatch | None = None
        self._pages: Pages | None = None

    def begin(self, batch: AttentionBatch, pages: Pages) -> None:
        """Take the step that the next forward computes."""
        self._batch, self._pages = batch, pages

    def attend(
        self, layer: int, form: AttentionForm, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Write keys and values to the layer's pages, and attend over them."""
        assert self._batch is not None and self._pages is not None
        pages, kind = self._pages.layers[layer], self._ops.dtype
        width = pages.shape.head_dim
        if self._batch.arrivals is not None:
            self._batch.arrivals.wait(layer)
        self._ops.kv_write(_padded(key, width, kind), _padded(value, width, kind), pages, self._batch.slots)
        out = self._ops.attend(_padded(query, width, kind), pages, self._batch, form)
        return out.view(*query.shape[:2], width)[..., : value.shape[-1]].to(query.dtype)


def _padded(heads: torch.Tensor, width: int, kind: torch.dtype) -> torch.Tensor:
    """Copy heads `[T, H, D]` end to end, with zeros up to the width of a page's: they change no score and no sum."""
    tokens, count, dim = heads.shape
    out = torch.empty((tokens, count, width), dtype=kind, device=heads.device)
    out[..., :dim] = heads
    out[..., dim:] = 0.0
    return out


def attention_modules(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the modules that may ask for attention: those that know their layer."""
    return (module for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int))


def connect(model: torch.nn.Module, attending: Attending) -> None:
    """Let `attending` answer all attention of the model."""
    for module in attention_modules(model):
        setattr(module, _CARRIER, attending)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **further: Any,
) -> tuple[torch.Tensor, None]:
    """Answer one attention module, queries `[1, H, T, D]`: `[1, T, H, D]`. Source: transformers' AttentionInterface."""
    attending = getattr(module, _CARRIER, None)
    if attending is None:
        raise ModelError(f"{type(module).__name__} does not know its layer, so it has no KV pages")
    _refuse_foreign(module, attention_mask, further)
    form = AttentionForm(
        query.shape[-1] ** -0.5 if scaling is None else float(scaling), sliding_window or 0, softcap or 0.0
    )
    out = attending.attend(
        int(module.layer_idx),  # type: ignore[arg-type]  # a number, or `connect` would have passed it by
        form,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
    )
    return out[None], None


def _refuse_foreign(module: torch.nn.Module, mask: torch.Tensor | None, further: dict[str, Any]) -> None:
    """Raise on what our attention does not compute, such as position biases, sinks or masks of the model's own."""
    foreign = [
        name
        for name, value in further.items()
        if value is not None and value is not False and name not in _HARMLESS and name != "is_causal"
    ]
    if mask is not None:
        foreign.append("attention_mask")
    if further.get("is_causal", getattr(module, "is_causal", True)) is False:
        foreign.append("is_causal=False")
    if foreign:
        raise ModelError(f"its attention asks for {', '.join(sorted(foreign))}, which attention over KV pages has not")


ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
