"""All layers of a step in one call of the library: nothing of Python lies between its parallel regions.

Called from Python one by one, the ops of thirty layers of SmolLM2-135M take 4 ms a decode beside the linears' 8.
"""

import ctypes
from collections.abc import Sequence

import torch

from kernels.batch import AttentionBatch
from kernels.cpu.library import CpuBatch, CpuHosted, CpuLayer, Geometry, Level, Library
from kernels.cpu.panels import PanelLinear
from kernels.layers import ComposedLayers, Layer
from kernels.pages import Pages

_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_ACTIVATIONS = {"silu": 0, "gelu": 1}


class CpuLayers:
    """Layers whose linears are all in panels."""

    def __init__(
        self, functions: Library, level: Level, dtype: torch.dtype, layers: Sequence[Layer], composed: ComposedLayers
    ) -> None:
        """Prepare the layers; `composed`, the same, run steps whose attention is a stream's."""
        self._composed = composed
        self._run = functions.layers
        self._level, self._type = int(level), _TYPES[dtype]
        self._kept = tuple(layers)  # the structs have only addresses
        self._layers = (CpuLayer * len(layers))(*(_layer(layer) for layer in layers))

    @staticmethod
    def can_run(layers: Sequence[Layer]) -> bool:
        """Whether every linear is one that the library multiplies."""
        return all(
            isinstance(linear, PanelLinear)
            for layer in layers
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor, pages: Pages, batch: AttentionBatch
    ) -> torch.Tensor:
        """See `LayerStack.__call__`; `hidden` is overwritten and returned."""
        if batch.stream is not None:
            return self._composed(hidden, residual, pages, batch)
        assert hidden.is_contiguous() and residual.is_contiguous() and len(self._kept) == pages.shape.num_layers
        hosted = hosted_of(batch, 0)
        step = CpuBatch(
            batch.block_table.data_ptr(),
            batch.block_table.stride(0),
            batch.rows.data_ptr(),
            batch.query_starts.data_ptr(),
            batch.contexts.data_ptr(),
            batch.positions.data_ptr(),
            batch.slots.data_ptr(),
            hidden.shape[0],
            batch.num_sequences,
            pages.shape.block_size,
            None if hosted is None else ctypes.addressof(hosted),
        )
        self._run(
            self._level,
            self._type,
            self._layers,
            len(self._kept),
            ctypes.byref(step),
            hidden.data_ptr(),
            residual.data_ptr(),
            pages.data.data_ptr(),
            pages.data.stride(0) * pages.data.element_size(),
            *_arrivals(batch),
            torch.get_num_threads(),
        )
        return hidden


def hosted_of(batch: AttentionBatch, layer: int) -> CpuHosted | None:
    """Return the batch's blocks in slabs as the library takes them, from one layer on; None: there are none."""
    if batch.hosted is None:
        return None
    slabs, table = batch.hosted.slabs, batch.hosted.table
    return CpuHosted(
        slabs[:, layer:].data_ptr(),
        slabs.stride(0),
        slabs.stride(1),
        table.data_ptr(),
        table.stride(0),
        batch.hosted.tokens.data_ptr(),
    )


def _arrivals(batch: AttentionBatch) -> tuple[int | None, int | None]:
    """Return where the number of layers that are there stands, and where seconds of waiting go."""
    if batch.arrivals is None:
        return None, None
    counter, waited = batch.arrivals.counter, batch.arrivals.waited
    assert counter is not None and waited is not None, "on the CPU a thread loads"
    return counter.data_ptr(), waited.data_ptr()


def _layer(layer: Layer) -> CpuLayer:
    linears = []
    for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
        assert isinstance(linear, PanelLinear)
        linears.append(linear.weight)
    norms = (
        layer.query_norm,
        layer.key_norm,
        layer.attention_post_norm,
        layer.mlp_norm,
        layer.mlp_post_norm,
        layer.next_norm,
    )
    assert all(norm is None or norm.is_contiguous() for norm in norms)
    return CpuLayer(
        *linears,
        *(None if norm is None else norm.data_ptr() for norm in norms),
        None if layer.table is None else layer.table.data_ptr(),
        Geometry(layer.num_heads, layer.num_kv_heads, layer.head_dim, 0),
        layer.norm_eps,
        layer.form.scale,
        layer.form.soft_cap,
        layer.form.window,
        _ACTIVATIONS[layer.activation],
    )
