"""Host memory for blocks that have left the device: an arena of slabs, one block each, and the copies either way.

On a GPU the arena is pinned, and copies are launched on the current stream: the host waits for none of them. On the CPU
it is memory that the system commits as it is first written, and blocks go straight to where they belong.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from engine.errors import ConfigError
from engine.request import SlabId
from engine.step import SlabMove
from kernels.ops import Ops
from kernels.pages import Pages

Array = np.ndarray[Any, Any]
Send = Callable[[Array], torch.Tensor]
"""Brings an array to the device, without a wait."""

_PIECE_BYTES = 2 << 20  # copied at once on a CPU: what is urgent waits for no more
_STAGE_BYTES = 8 << 20  # on a GPU: what a launch is worth
_MAPPED = 2  # cudaHostRegisterMapped: kernels may read it


class Slabs:
    """The arena of one runner."""

    def __init__(self, ops: Ops, pages: Pages, num_slabs: int) -> None:
        """Reserve the arena.

        Raises:
            ConfigError: the host has no room for it.
        """
        self._ops, self._pages = ops, pages
        self.block_bytes = block_bytes = pages.shape.block_bytes(ops.dtype)
        self._shared = ops.device.type == "cpu"
        piece_bytes = _PIECE_BYTES if self._shared else _STAGE_BYTES
        self.most = max(1, piece_bytes // block_bytes)  # blocks copied at once
        shape = (num_slabs, pages.shape.num_layers, pages.shape.block_elements)
        try:
            self.arena = torch.empty(shape, dtype=ops.dtype)
            if not self._shared and num_slabs:
                _pin(self.arena)
        except RuntimeError as error:
            raise ConfigError(
                f"ENGINE_HOST_BYTES: the host has no room for {num_slabs * block_bytes} bytes of swapped blocks, or"
                f" does not let so much be pinned; choose less ({error})"
            ) from error
        self._bytes: Array = self.arena.view(torch.uint8).reshape(num_slabs, block_bytes).numpy()

    def store(self, moves: Sequence[SlabMove], send: Send) -> None:
        """Copy blocks to slabs."""
        if self._shared:
            blocks, places = indices(moves)
            self._ops.gather_blocks(self._pages, send(blocks), out=self.arena, places=send(places))
            return
        for piece in self._pieces(moves):
            blocks, places = indices(piece)
            slabs = self._ops.gather_blocks(self._pages, send(blocks))
            for there, here in _runs(places):
                self.arena[there].copy_(slabs[here], non_blocking=True)

    def load(self, moves: Sequence[SlabMove], send: Send) -> None:
        """Copy slabs to blocks."""
        if self._shared:
            blocks, places = indices(moves)
            self._ops.scatter_blocks(self.arena, self._pages, send(blocks), places=send(places))
            return
        for piece in self._pieces(moves):
            blocks, places = indices(piece)
            slabs = torch.empty((len(piece), *self.arena.shape[1:]), dtype=self._ops.dtype, device=self._ops.device)
            for there, here in _runs(places):
                slabs[here].copy_(self.arena[there], non_blocking=True)
            self._ops.scatter_blocks(slabs, self._pages, send(blocks))

    def load_layers(self, blocks: torch.Tensor, places: torch.Tensor, first: int, end: int) -> None:
        """Copy the layers from `first` to `end` of slabs `places` `[N]` to `blocks` `[N]`, int64 on the device."""
        self._ops.scatter_blocks(self.arena[:, first:end], self._pages.part(first, end), blocks, places=places)

    def beside(self) -> "Slabs":
        """Return the same arena for a thread beside the one that computes."""
        other = copy(self)
        other._ops = self._ops.beside()
        return other

    def memory(self, slab: SlabId) -> memoryview:
        """Return the bytes of a slab."""
        own: memoryview = self._bytes[slab].data
        return own

    def wipe(self, slabs: Sequence[SlabId]) -> None:
        """Overwrite slabs with zeros, at once."""
        for slab in slabs:
            self._bytes[slab].fill(0)

    def _pieces(self, moves: Sequence[SlabMove]) -> Iterator[list[SlabMove]]:
        """Cut moves into pieces, in the order of slabs."""
        ordered = sorted(moves, key=lambda move: move.slab)
        for at in range(0, len(ordered), self.most):
            yield ordered[at : at + self.most]


def indices(moves: Sequence[SlabMove]) -> tuple[Array, Array]:
    """Return blocks and slabs of moves, int64."""
    both = np.array(moves, dtype=np.int64).reshape(len(moves), 2)
    return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])


def _runs(places: Array) -> Iterator[tuple[slice, slice]]:
    """Yield neighbouring slabs among rising ones: which, and where they stand in the list."""
    ends = np.flatnonzero(np.diff(places) != 1) + 1
    for start, end in pairwise((0, *ends.tolist(), len(places))):
        yield slice(int(places[start]), int(places[end - 1]) + 1), slice(start, end)


def _pin(arena: torch.Tensor) -> None:
    """Pin memory in place: torch's own allocator of pinned memory would take up to twice as much."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch gives it no types
    torch.cuda.check_error(runtime.cudaHostRegister(arena.data_ptr(), arena.nbytes, _MAPPED))
