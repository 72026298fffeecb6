"""KV pages: where keys and values of every block live. The order inside a page is the backend's own."""

from dataclasses import dataclass, replace

import torch

# A vector load at the end of a page may run over it; past the last page it must still be our memory.
_SLACK = 64
_ALIGNMENT = 4096  # bytes; a block's head is often of this size, and one that lies across two pages is read more slowly


@dataclass(frozen=True, slots=True, kw_only=True)
class PageShape:
    """Geometry of the pages of one model."""

    num_layers: int
    num_blocks: int
    block_size: int  # token slots
    num_kv_heads: int
    head_dim: int

    @property
    def block_elements(self) -> int:
        """Elements of one block in one layer: K and V of all heads."""
        return 2 * self.num_kv_heads * self.block_size * self.head_dim

    def block_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers, K and V."""
        return self.num_layers * self.block_elements * dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerPages:
    """The pages of one layer: `data` is `[num_blocks, block_elements]`, contiguous; its order is the backend's own."""

    shape: PageShape
    data: torch.Tensor
    layer: int = 0  # which one


@dataclass(frozen=True, slots=True)
class Pages:
    """The whole device pool: `data` is `[num_layers, num_blocks, block_elements]`."""

    shape: PageShape
    data: torch.Tensor
    layers: tuple[LayerPages, ...]

    @classmethod
    def empty(cls, shape: PageShape, dtype: torch.dtype, device: torch.device) -> "Pages":
        """Reserve the pool without writing to it, so that memory is committed as blocks are first used."""
        elements = shape.num_layers * shape.num_blocks * shape.block_elements
        flat = torch.empty(elements + _ALIGNMENT // dtype.itemsize + _SLACK, dtype=dtype, device=device)
        start = -flat.data_ptr() % _ALIGNMENT // dtype.itemsize
        data = flat[start : start + elements].view(shape.num_layers, shape.num_blocks, shape.block_elements)
        return cls(shape, data, tuple(LayerPages(shape, part, layer) for layer, part in enumerate(data.unbind(0))))

    def part(self, first: int, end: int) -> "Pages":
        """Return the pages of the layers from `first` to `end`, the same memory."""
        return Pages(replace(self.shape, num_layers=end - first), self.data[first:end], self.layers[first:end])

    def fill(self, blocks: torch.Tensor, value: float) -> None:
        """Overwrite whole blocks in every layer. `blocks`: int64 ids."""
        self.data.index_fill_(1, blocks, value)
