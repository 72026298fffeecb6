"""Slabs of a runner: what goes out comes back, in whatever order and pieces; wiped is wiped; too much is refused."""

import random

import pytest
import torch

from engine.errors import ConfigError
from engine.model.lanes import HostLane, Lane, PinnedLane
from engine.model.slabs import Slabs
from engine.request import BlockId, SlabId
from engine.step import SlabMove
from kernels.ops import Ops, select_backend
from kernels.pages import Pages, PageShape
from tests.engine.model.device_like import HostEvent

CPU = torch.device("cpu")
NUM_BLOCKS, NUM_SLABS = 40, 24


@pytest.fixture(params=["reference", "auto"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """The kernels."""
    return select_backend(request.param, device=CPU, dtype=torch.float32)


@pytest.fixture(params=["host", "pinned"])
def lane(request: pytest.FixtureRequest) -> Lane:
    """Both ways to a device."""
    return HostLane() if request.param == "host" else PinnedLane(CPU, HostEvent)


def make_pages(ops: Ops, *, num_layers: int = 3, head_dim: int = 16) -> Pages:
    """Return pages of random numbers."""
    shape = PageShape(num_layers=num_layers, num_blocks=NUM_BLOCKS, block_size=8, num_kv_heads=2, head_dim=head_dim)
    pages = ops.empty_pages(shape)
    pages.data.normal_(generator=torch.Generator().manual_seed(1))
    return pages


def moves(blocks: list[int], slabs: list[int]) -> list[SlabMove]:
    """Return moves between blocks and slabs, in pairs."""
    return [SlabMove(BlockId(block), SlabId(slab)) for block, slab in zip(blocks, slabs, strict=True)]


@pytest.mark.parametrize("head_dim", [16, 4096])
def test_what_goes_out_comes_back(ops: Ops, lane: Lane, head_dim: int) -> None:
    """Shuffled blocks to shuffled slabs, in pieces of one block and of many, and back to others; straight, staged."""
    pages, chance = make_pages(ops, head_dim=head_dim), random.Random(3)
    before, slabs = pages.data.clone(), Slabs(ops, pages, NUM_SLABS)
    slabs._shared = isinstance(lane, HostLane)
    out, places = chance.sample(range(NUM_BLOCKS), 17), chance.sample(range(NUM_SLABS), 17)
    lane.begin()
    slabs.store(moves(out, places), lane.send_one)
    pages.data.fill_(float("nan"))
    back = chance.sample(range(NUM_BLOCKS), 17)
    slabs.load(moves(back, places), lane.send_one)
    assert torch.equal(pages.data[:, back], before[:, out])
    others = [block for block in range(NUM_BLOCKS) if block not in back]
    assert pages.data[:, others].isnan().all(), "a block is written that nobody named"


def test_bytes_of_a_slab(ops: Ops) -> None:
    """A tier below reads and writes a slab's bytes where they lie."""
    pages = make_pages(ops)
    before, slabs = pages.data.clone(), Slabs(ops, pages, NUM_SLABS)
    slabs.store(moves([7, 8, 9], [3, 4, 5]), torch.from_numpy)
    memory = slabs.memory(SlabId(4))
    assert len(memory) == memory.nbytes == slabs.block_bytes == pages.shape.block_bytes(ops.dtype)
    assert bytes(memory) == before[:, 8].contiguous().numpy().tobytes()
    memory[:] = bytes(slabs.memory(SlabId(3)))
    slabs.load(moves([20, 21, 22], [3, 4, 5]), torch.from_numpy)
    assert torch.equal(pages.data[:, 20:23], before[:, [7, 7, 9]])


def test_wiped_slabs_hold_zeros(ops: Ops) -> None:
    """Nothing of a tenant that is gone is left, and the neighbours keep what is theirs."""
    pages = make_pages(ops)
    before, slabs = pages.data.clone(), Slabs(ops, pages, NUM_SLABS)
    slabs.store(moves([0, 1, 2], [4, 5, 6]), torch.from_numpy)
    slabs.wipe([SlabId(5)])
    slabs.load(moves([10, 11, 12], [4, 5, 6]), torch.from_numpy)
    assert torch.equal(pages.data[:, [10, 12]], before[:, [0, 2]])
    assert not pages.data[:, 11].any()


def test_no_slabs_at_all(ops: Ops) -> None:
    """A worker without host memory for blocks has an arena of nothing."""
    Slabs(ops, make_pages(ops), 0).wipe([])


def test_more_than_the_host_has_is_refused(ops: Ops) -> None:
    """The setting is named."""
    with pytest.raises(ConfigError, match="ENGINE_HOST_BYTES"):
        Slabs(ops, make_pages(ops), 1 << 50)
