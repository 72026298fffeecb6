"""Whole blocks on the move: gathered into slabs, scattered from slabs, copied. What lies where inside does not matter.

A slab is one block over all layers: `[num_layers, block_elements]`. Elements move as integers of their size, so that no
NaN changes its bits on the way. Slabs may lie in pinned host memory, which a GPU reads and writes by itself: no copy of
a layer of many slabs could be told to its copy engines in one call. A few programs keep the bus busy then, and leave
the rest of the GPU to others.
"""

import torch
import triton
import triton.language as tl

from kernels.pages import Pages
from kernels.triton_ops.launch import Launch, power_of_two

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_ACROSS = 64  # programs whose loads and stores cross the bus
_MOST = 1 << 16


@triton.jit
def _copy(source, target, part, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    lanes = part * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < ELEMENTS
    tl.store(target + lanes, tl.load(source + lanes, mask=mask, other=0), mask=mask)


@triton.jit
def _item(item, blocks, places, num_blocks, num_layers, slab_layers, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr,
          PLACED: tl.constexpr):  # fmt: skip
    """Return where an item lies in the pages and in the slabs, and which part of a block it is."""
    PARTS: tl.constexpr = (ELEMENTS + BLOCK - 1) // BLOCK
    layer, index = item // PARTS % num_layers, item // PARTS // num_layers
    block = tl.load(blocks + index)
    slab = tl.load(places + index) if PLACED else index.to(tl.int64)
    return (layer.to(tl.int64) * num_blocks + block) * ELEMENTS, (slab * slab_layers + layer) * ELEMENTS, item % PARTS


@triton.jit(do_not_specialize=["count", "num_blocks", "num_layers", "slab_layers"])
def gather_kernel(
    slabs, pages, blocks, places, count, num_blocks, num_layers, slab_layers,
    ELEMENTS: tl.constexpr, BLOCK: tl.constexpr, PLACED: tl.constexpr,
):  # fmt: skip
    """`slabs[places[i], layer] = pages[layer, blocks[i]]`."""
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        paged, slabbed, part = _item(item, blocks, places, num_blocks, num_layers, slab_layers, ELEMENTS, BLOCK, PLACED)
        _copy(pages + paged, slabs + slabbed, part, ELEMENTS, BLOCK)


@triton.jit(do_not_specialize=["count", "num_blocks", "num_layers", "slab_layers"])
def scatter_kernel(
    slabs, pages, blocks, places, count, num_blocks, num_layers, slab_layers,
    ELEMENTS: tl.constexpr, BLOCK: tl.constexpr, PLACED: tl.constexpr,
):  # fmt: skip
    """`pages[layer, blocks[i]] = slabs[places[i], layer]`."""
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        paged, slabbed, part = _item(item, blocks, places, num_blocks, num_layers, slab_layers, ELEMENTS, BLOCK, PLACED)
        _copy(slabs + slabbed, pages + paged, part, ELEMENTS, BLOCK)


@triton.jit(do_not_specialize=["num_blocks"])
def copy_kernel(pages, sources, targets, num_blocks, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """`pages[layer, targets[i]] = pages[layer, sources[i]]`."""
    index, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source, target = tl.load(sources + index), tl.load(targets + index)
    start = pages + layer * num_blocks * ELEMENTS
    _copy(start + source * ELEMENTS, start + target * ELEMENTS, tl.program_id(2), ELEMENTS, BLOCK)


def gather_launch(
    pages: Pages, blocks: torch.Tensor, out: torch.Tensor | None, places: torch.Tensor | None
) -> tuple[Launch, torch.Tensor]:
    """Prepare the gather of `blocks` `[N]` int64 into slabs `[N, num_layers, block_elements]`, or into `out`."""
    if out is None:
        shape = (len(blocks), pages.shape.num_layers, pages.shape.block_elements)
        out = torch.empty(shape, dtype=pages.data.dtype, device=pages.data.device)
    return _between(gather_kernel, out, pages, blocks, places), out


def scatter_launch(slabs: torch.Tensor, pages: Pages, blocks: torch.Tensor, places: torch.Tensor | None) -> Launch:
    """Prepare the scatter of `slabs` `[M, num_layers, block_elements]` to `blocks` `[N]` int64."""
    return _between(scatter_kernel, slabs, pages, blocks, places)


def copy_launch(pages: Pages, sources: torch.Tensor, targets: torch.Tensor) -> Launch:
    """Prepare the copy of whole blocks; no target may be a source of the same call."""
    elements = pages.shape.block_elements
    arguments = {
        "pages": _integers(pages.data),
        "sources": sources,
        "targets": targets,
        "num_blocks": _stride(pages),
        "ELEMENTS": elements,
        "BLOCK": _block(elements),
    }
    return Launch(copy_kernel, (len(sources), pages.shape.num_layers, -(-elements // _block(elements))), arguments)


def _between(
    kernel: object, slabs: torch.Tensor, pages: Pages, blocks: torch.Tensor, places: torch.Tensor | None
) -> Launch:
    elements = pages.shape.block_elements
    assert slabs.stride(2) == 1 and slabs.stride(1) == elements and slabs.stride(0) % elements == 0
    block = _block(elements)
    count = len(blocks) * pages.shape.num_layers * -(-elements // block)
    arguments = {
        "slabs": _integers(slabs),
        "pages": _integers(pages.data),
        "blocks": blocks,
        "places": blocks if places is None else places,
        "count": count,
        "num_blocks": _stride(pages),
        "num_layers": pages.shape.num_layers,
        "slab_layers": slabs.stride(0) // elements,
        "ELEMENTS": elements,
        "BLOCK": block,
        "PLACED": places is not None,
    }
    return Launch(kernel, (min(count, _MOST if slabs.device == pages.data.device else _ACROSS),), arguments)


def _integers(data: torch.Tensor) -> torch.Tensor:
    return data.view(_INTEGER[data.element_size()])


def _stride(pages: Pages) -> int:
    """Return how many blocks lie between a block in one layer and in the next."""
    return pages.data.stride(0) // pages.shape.block_elements


def _block(elements: int) -> int:
    return min(power_of_two(elements), 2048)
