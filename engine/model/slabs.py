"""Host memory for blocks that have left the device: an arena of slabs, one block each, and the copies either way.

On a GPU the arena is pinned, and copies are launched on the step's stream: they are in their place in the order of
steps, and the host waits for none of them. On the CPU it is memory that the system commits as it is first written.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from engine.errors import ConfigError
from engine.model.lanes import LOADS, STORES, Lane
from engine.request import SlabId
from engine.step import SlabMove
from kernels.ops import Ops
from kernels.pages import Pages

_PIECE_BYTES = 4 << 20  # copied at once: what is gathered is in the cache still when it is copied on


class Slabs:
    """The arena of one runner."""

    def __init__(self, ops: Ops, pages: Pages, num_slabs: int) -> None:
        """Reserve the arena.

        Raises:
            ConfigError: the host has no room for it.
        """
        self._ops, self._pages = ops, pages
        block_bytes = pages.shape.block_bytes(ops.dtype)
        self._shared = ops.device.type == "cpu"
        self._most = max(1, _PIECE_BYTES // block_bytes)  # blocks copied at once
        shape = (num_slabs, pages.shape.num_layers, pages.shape.block_elements)
        try:
            self._arena = torch.empty(shape, dtype=ops.dtype)
            if not self._shared and num_slabs:
                _pin(self._arena)
        except RuntimeError as error:
            raise ConfigError(
                f"ENGINE_HOST_BYTES: the host has no room for {num_slabs * block_bytes} bytes of swapped blocks, or"
                f" does not let so much be pinned; choose less ({error})"
            ) from error
        self._zeros = torch.zeros(shape[1:], dtype=ops.dtype, device=ops.device)

    def store(self, moves: Sequence[SlabMove], lane: Lane) -> None:
        """Copy blocks to slabs."""
        with lane.timed(STORES):
            for first, blocks in self._pieces(moves):
                slabs = self._ops.gather_blocks(self._pages, lane.send(blocks)[0])
                self._arena[first : first + len(blocks)].copy_(slabs, non_blocking=True)

    def load(self, moves: Sequence[SlabMove], lane: Lane) -> None:
        """Copy slabs to blocks."""
        with lane.timed(LOADS):
            for first, blocks in self._pieces(moves):
                slabs = self._arena[first : first + len(blocks)]
                there = slabs if self._shared else slabs.to(self._ops.device, non_blocking=True)
                self._ops.scatter_blocks(there, self._pages, lane.send(blocks)[0])

    def wipe(self, slabs: Sequence[SlabId]) -> None:
        """Overwrite slabs with zeros, after all copies that were launched before."""
        for slab in slabs:
            self._arena[slab].copy_(self._zeros, non_blocking=True)

    def _pieces(self, moves: Sequence[SlabMove]) -> Iterator[tuple[int, "np.ndarray[tuple[int], np.dtype[np.int64]]"]]:
        """Cut moves into pieces of neighbouring slabs; yield the first slab and the blocks of each."""
        ordered = sorted(moves, key=lambda move: move.slab)
        ends = [place for place, (one, other) in enumerate(pairwise(ordered), 1) if other.slab != one.slab + 1]
        for start, end in pairwise((0, *ends, len(ordered))):
            for at in range(start, end, self._most):
                piece = ordered[at : min(end, at + self._most)]
                yield piece[0].slab, np.array([move.block for move in piece], dtype=np.int64)


def _pin(arena: torch.Tensor) -> None:
    """Pin memory in place: torch's own allocator of pinned memory would take up to twice as much."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch gives it no types
    torch.cuda.check_error(runtime.cudaHostRegister(arena.data_ptr(), arena.nbytes, 0))
