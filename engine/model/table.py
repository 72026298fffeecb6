"""The block table: which block holds which tokens of a row's sequence. On the host, and on the device in place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from engine.step import TableWrite

Array = np.ndarray[Any, Any]


class BlockTable:
    """`[rows, columns]` int32, twice: the host's looks up slots, the device's is what attention reads."""

    def __init__(self, rows: int, columns: int, device: torch.device, *, shared: bool) -> None:
        """Make a table of zeros; `shared`: both are one memory."""
        self.tensor = torch.zeros((rows, columns), dtype=torch.int32, device=device)
        self.host: Array = self.tensor.numpy() if shared else np.zeros((rows, columns), dtype=np.int32)
        self._shared = shared

    def write(self, writes: Sequence[TableWrite]) -> tuple[Array, Array] | None:
        """Take writes down on the host.

        Returns:
            For `update`: the changed cells, row after row `[N]` int64, and their blocks `[N]` int32. None: nothing is
            left to do.
        """
        cells: list[int] = []
        columns = self.host.shape[1]
        for row, column, blocks in writes:
            self.host[row, column : column + len(blocks)] = blocks
            first = row * columns + column
            cells.extend(range(first, first + len(blocks)))
        if self._shared or not cells:
            return None
        changed = np.array(cells, dtype=np.int64)
        return changed, self.host.reshape(-1)[changed]  # a cell that was written twice has its last block twice

    def update(self, cells: torch.Tensor, blocks: torch.Tensor) -> None:
        """Write what `write` returned, brought to the device."""
        self.tensor.view(-1).index_put_((cells,), blocks)
