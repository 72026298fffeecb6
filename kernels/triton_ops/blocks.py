"""Whole blocks on the move: gathered into slabs, scattered from slabs, copied. What lies where inside does not matter.

A slab is one block over all layers, contiguous: `[num_layers, block_elements]`. Elements move as integers of their
size, so that no NaN changes its bits on the way.
"""

import torch
import triton
import triton.language as tl

from kernels.pages import Pages
from kernels.triton_ops.launch import Launch, power_of_two

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32}


@triton.jit
def _copy(source, target, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < ELEMENTS
    tl.store(target + lanes, tl.load(source + lanes, mask=mask, other=0), mask=mask)


@triton.jit(do_not_specialize=["num_blocks", "num_layers"])
def gather_kernel(slabs, pages, blocks, num_blocks, num_layers, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """`slabs[i, layer] = pages[layer, blocks[i]]`."""
    index, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    block = tl.load(blocks + index)
    _copy(
        pages + (layer * num_blocks + block) * ELEMENTS,
        slabs + (index * num_layers + layer) * ELEMENTS,
        ELEMENTS,
        BLOCK,
    )


@triton.jit(do_not_specialize=["num_blocks", "num_layers"])
def scatter_kernel(slabs, pages, blocks, num_blocks, num_layers, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """`pages[layer, blocks[i]] = slabs[i, layer]`."""
    index, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    block = tl.load(blocks + index)
    _copy(
        slabs + (index * num_layers + layer) * ELEMENTS,
        pages + (layer * num_blocks + block) * ELEMENTS,
        ELEMENTS,
        BLOCK,
    )


@triton.jit(do_not_specialize=["num_blocks"])
def copy_kernel(pages, sources, targets, num_blocks, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """`pages[layer, targets[i]] = pages[layer, sources[i]]`."""
    index, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source, target = tl.load(sources + index), tl.load(targets + index)
    start = pages + layer * num_blocks * ELEMENTS
    _copy(start + source * ELEMENTS, start + target * ELEMENTS, ELEMENTS, BLOCK)


def gather_launch(pages: Pages, blocks: torch.Tensor) -> tuple[Launch, torch.Tensor]:
    """Prepare the gather of `blocks` `[N]` int64: slabs `[N, num_layers, block_elements]`."""
    shape = pages.shape
    slabs = torch.empty(
        (len(blocks), shape.num_layers, shape.block_elements), dtype=pages.data.dtype, device=pages.data.device
    )
    return _between(gather_kernel, slabs, pages, blocks), slabs


def scatter_launch(slabs: torch.Tensor, pages: Pages, blocks: torch.Tensor) -> Launch:
    """Prepare the scatter of `slabs` `[N, num_layers, block_elements]` to `blocks` `[N]` int64."""
    return _between(scatter_kernel, slabs, pages, blocks)


def copy_launch(pages: Pages, sources: torch.Tensor, targets: torch.Tensor) -> Launch:
    """Prepare the copy of whole blocks; no target may be a source of the same call."""
    arguments = {"pages": _integers(pages.data), "sources": sources, "targets": targets, **_sizes(pages)}
    return Launch(copy_kernel, _grid(pages, len(sources)), arguments)


def _between(kernel: object, slabs: torch.Tensor, pages: Pages, blocks: torch.Tensor) -> Launch:
    arguments = {
        "slabs": _integers(slabs),
        "pages": _integers(pages.data),
        "blocks": blocks,
        "num_layers": pages.shape.num_layers,
        **_sizes(pages),
    }
    return Launch(kernel, _grid(pages, len(blocks)), arguments)


def _integers(data: torch.Tensor) -> torch.Tensor:
    return data.view(_INTEGER[data.element_size()])


def _sizes(pages: Pages) -> dict[str, int]:
    elements = pages.shape.block_elements
    return {"num_blocks": pages.shape.num_blocks, "ELEMENTS": elements, "BLOCK": min(power_of_two(elements), 2048)}


def _grid(pages: Pages, count: int) -> tuple[int, int, int]:
    elements = pages.shape.block_elements
    return (count, pages.shape.num_layers, -(-elements // min(power_of_two(elements), 2048)))
