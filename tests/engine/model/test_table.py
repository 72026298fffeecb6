"""The block table, on the host and where attention reads it."""

import numpy as np
import pytest
import torch

from engine.model.table import BlockTable
from engine.request import BlockId
from engine.step import TableWrite
from tests.engine.model.device_like import CPU


def write(row: int, column: int, *blocks: int) -> TableWrite:
    """Return a write of some cells."""
    return TableWrite(row=row, column=column, blocks=tuple(map(BlockId, blocks)))


def test_changed_cells_alone_are_sent() -> None:
    """The device is told the cells that changed, and has the host's table then; the later of two writes is in force."""
    table = BlockTable(4, 6, CPU, shared=False)
    sent = 0
    for writes in ([write(1, 2, 7, 8), write(3, 5, 9)], [write(1, 3, 4, 5, 6), write(1, 4, 2)], [write(0, 0, 3)]):
        cells = table.write(writes)
        assert cells is not None
        sent += len(cells[0])
        table.update(*map(torch.from_numpy, cells))
        np.testing.assert_array_equal(table.tensor.numpy(), table.host)
    assert sent == 3 + 4 + 1
    assert table.host.tolist() == [[3, 0, 0, 0, 0, 0], [0, 0, 7, 4, 2, 6], [0] * 6, [0, 0, 0, 0, 0, 9]]


@pytest.mark.parametrize("shared", [True, False])
def test_nothing_is_left_to_do(shared: bool) -> None:
    """Without writes, and where both tables are one memory, nothing goes to the device."""
    table = BlockTable(2, 3, CPU, shared=shared)
    assert table.write([]) is None
    assert (table.write([write(1, 0, 5)]) is None) == shared
    assert table.host.tolist() == [[0, 0, 0], [5, 0, 0]]
    assert table.tensor[1, 0] == (5 if shared else 0)


def test_write_past_a_row_is_an_error() -> None:
    """Blocks that don't fit their row are refused, and never land in the next one."""
    with pytest.raises(ValueError, match="broadcast"):
        BlockTable(2, 3, CPU, shared=False).write([write(0, 2, 1, 2)])
