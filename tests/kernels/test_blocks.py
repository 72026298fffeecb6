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


def test_copies(ops: Ops) -> None:
    """Blocks are copied in every layer, one source to several targets too."""
    pages = filled(ops, 4, 8)
    before = bits(pages.data)
    ops.copy_blocks(pages, torch.tensor([7, 7, 0]), torch.tensor([1, 2, 3]))
    after = bits(pages.data)
    assert torch.equal(after, before[:, [0, 7, 7, 0, 4, 5, 6, 7]])


def test_merge_partials(ops: Ops) -> None:
    """Parts are weighted by the exponentials of their log-sum-exp; a part of -inf counts nothing, even if it is NaN."""
    parts, lse = torch.randn(3, 2, 2, 80), torch.randn(3, 2, 2)
    lse[1, 0], parts[1, 0] = float("-inf"), float("nan")
    exact = (lse.double().softmax(0).unsqueeze(-1) * parts.double().nan_to_num()).sum(0)
    assert_close(ops.merge_partials(parts, lse), exact)
