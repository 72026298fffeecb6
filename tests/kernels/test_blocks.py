"""Whole blocks on the move, and parts of attention joined, on every backend."""

import pytest
import torch

from kernels.ops import Ops
from kernels.pages import Pages, PageShape
from tests.kernels.cases import assert_close


def filled(ops: Ops, num_layers: int, num_blocks: int) -> Pages:
    """Return a pool of random blocks with a NaN among them."""
    shape = PageShape(num_layers=num_layers, num_blocks=num_blocks, block_size=16, num_kv_heads=3, head_dim=24)
    pages = ops.empty_pages(shape)
    pages.data.copy_(torch.randn(pages.data.shape))
    pages.data[-1, -1, 5] = float("nan")
    return pages


def bits(data: torch.Tensor) -> torch.Tensor:
    """Return a copy of the data as integers: equal bits are equal, NaN or not."""
    return data.clone().view(torch.int16 if data.element_size() == 2 else torch.int32)


@pytest.mark.parametrize(("num_layers", "num_blocks", "count"), [(1, 3, 0), (1, 3, 3), (5, 9, 4), (30, 200, 150)])
def test_there_and_back(ops: Ops, num_layers: int, num_blocks: int, count: int) -> None:
    """Blocks gathered into slabs and scattered into another pool arrive bit by bit, the others stay as they were."""
    pages, other = filled(ops, num_layers, num_blocks), filled(ops, num_layers, num_blocks)
    source, target = (torch.randperm(num_blocks)[:count] for _ in range(2))
    expected = bits(other.data)
    expected[:, target] = bits(pages.data)[:, source]
    slabs = ops.gather_blocks(pages, source)
    assert slabs.shape == (count, num_layers, pages.shape.block_elements)
    assert slabs.is_contiguous()
    ops.scatter_blocks(slabs, other, target)
    assert torch.equal(bits(other.data), expected)


@pytest.mark.parametrize(("num_layers", "num_blocks", "count"), [(1, 3, 0), (5, 9, 4), (30, 200, 150)])
def test_slabs_in_place(ops: Ops, num_layers: int, num_blocks: int, count: int) -> None:
    """Blocks go to the places of an arena that are named and come back from there, bit by bit, in either ops; what else
    is in the arena stays.
    """
    pages, other = filled(ops, num_layers, num_blocks), filled(ops, num_layers, num_blocks)
    arena = torch.randn(num_blocks + 5, num_layers, pages.shape.block_elements).to(ops.dtype)
    source, target = (torch.randperm(num_blocks)[:count] for _ in range(2))
    places = torch.randperm(len(arena))[:count]
    held, expected = bits(arena), bits(other.data)
    held[places] = bits(pages.data)[:, source].transpose(0, 1)
    expected[:, target] = bits(pages.data)[:, source]
    assert ops.gather_blocks(pages, source, out=arena, places=places) is arena
    assert torch.equal(bits(arena), held)
    ops.beside().scatter_blocks(arena, other, target, places=places)
    assert torch.equal(bits(other.data), expected)


@pytest.mark.parametrize("beside", [False, True])
def test_some_layers_alone(ops: Ops, beside: bool) -> None:
    """A part of the layers goes either way by itself, and leaves the others as they were."""
    pages, other = filled(ops, 5, 9), filled(ops, 5, 9)
    ops = ops.beside() if beside else ops
    arena = torch.randn(7, 5, pages.shape.block_elements).to(ops.dtype)
    blocks, places = torch.tensor([8, 0, 3]), torch.tensor([1, 6, 2])
    held, expected = bits(arena), bits(other.data)
    held[places, 1:3] = bits(pages.data)[1:3, blocks].transpose(0, 1)
    ops.gather_blocks(pages.part(1, 3), blocks, out=arena[:, 1:3], places=places)
    assert torch.equal(bits(arena), held)
    expected[4:, blocks] = held[places, 4:].transpose(0, 1)
    ops.scatter_blocks(arena[:, 4:], other.part(4, 5), blocks, places=places)
    assert torch.equal(bits(other.data), expected)
    assert [one.layer for one in pages.part(1, 3).layers] == [1, 2]


def test_copies(ops: Ops) -> None:
    """Blocks are copied in every layer, one source to several targets too."""
    pages = filled(ops, 4, 8)
    before = bits(pages.data)
    ops.copy_blocks(pages, torch.tensor([7, 7, 0]), torch.tensor([1, 2, 3]))
    after = bits(pages.data)
    assert torch.equal(after, before[:, [0, 7, 7, 0, 4, 5, 6, 7]])


@pytest.mark.parametrize("shape", [(1, 1, 1, 64), (3, 2, 2, 80), (2, 40, 9, 64), (5, 3, 7, 33), (17, 9, 4, 128)])
@pytest.mark.parametrize("wide", [False, True])
def test_merge_partials(ops: Ops, shape: tuple[int, ...], wide: bool) -> None:
    """Parts, in float32 or the ops' dtype, are weighted by the exponentials of their log-sum-exp.

    A part of -inf counts nothing, even if it is NaN.
    """
    random = torch.Generator().manual_seed(shape[-1])
    parts = torch.randn(shape, generator=random).to(torch.float32 if wide else ops.dtype)
    lse = torch.randn(shape[:3], generator=random) * 30
    if shape[0] > 1:
        lse[1, 0], parts[1, 0] = float("-inf"), float("nan")
    exact = (lse.double().softmax(0).unsqueeze(-1) * parts.double().nan_to_num()).sum(0)
    assert_close(ops.merge_partials(parts, lse), exact)


def test_merge_hides_no_poison(ops: Ops) -> None:
    """A NaN in a part that counts, or in its log-sum-exp, is in the result of its row, and in no other."""
    parts, lse = torch.randn(3, 4, 2, 80), torch.randn(3, 4, 2)
    parts[2, 0, 1, 17], lse[1, 2, 0] = float("nan"), float("nan")
    found = ops.merge_partials(parts, lse).isnan()
    assert found[0, 1, 17] and found[2, 0].all()
    assert int(found.sum()) == 1 + 80


def test_merged_rows_are_alone(ops: Ops) -> None:
    """A row's result is the same to the bit whatever rows there are beside it."""
    parts, lse = torch.randn(4, 300, 2, 80), torch.randn(4, 300, 2)
    together = ops.merge_partials(parts, lse)
    alone = ops.merge_partials(parts[:, 7:8].contiguous(), lse[:, 7:8].contiguous())
    assert torch.equal(alone, together[7:8])


def test_pool_begins_at_a_memory_page(ops: Ops) -> None:
    """The heads of blocks whose size divides a page of memory lie in one page each."""
    for _ in range(3):
        assert filled(ops, 1, 5).data.data_ptr() % 4096 == 0
