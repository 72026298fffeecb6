"""KV pages: where keys and values of every block live. The order inside a page is the backend's own."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PageShape:
    """Geometry of the pages of one model."""

    num_layers: int
    num_blocks: int
    block_size: int  # token slots
    num_kv_heads: int
    head_dim: int

    @property
    def page_elements(self) -> int:
        """Elements of one head's keys (or values) in one block."""
        return self.block_size * self.head_dim

    def block_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers, K and V."""
        return self.num_layers * 2 * self.num_kv_heads * self.page_elements * dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerPages:
    """The pages of one layer: `data` is `[num_blocks, 2 (K, V), num_kv_heads, page_elements]`, contiguous."""

    shape: PageShape
    data: torch.Tensor


@dataclass(frozen=True, slots=True)
class Pages:
    """The whole device pool: `data` is `[num_layers, num_blocks, 2, num_kv_heads, page_elements]`."""

    shape: PageShape
    data: torch.Tensor
    layers: tuple[LayerPages, ...]

    @classmethod
    def empty(cls, shape: PageShape, dtype: torch.dtype, device: torch.device) -> "Pages":
        """Reserve the pool without writing to it, so that memory is committed as blocks are first used."""
        size = (shape.num_layers, shape.num_blocks, 2, shape.num_kv_heads, shape.page_elements)
        data = torch.empty(size, dtype=dtype, device=device)
        return cls(shape, data, tuple(LayerPages(shape, layer) for layer in data.unbind(0)))

    def fill(self, blocks: torch.Tensor, value: float) -> None:
        """Overwrite whole blocks in every layer. `blocks`: int64 ids."""
        self.data.index_fill_(1, blocks, value)
