"""Tile sizes by GPU generation, element size and head size: looked up, never searched for while a request waits.

The figures come from what `python -m kernels.triton_ops.aot` reports: registers, spills, shared memory, buffers in
flight. A generation that is not listed takes the nearest older one.

`split` is the KV of one decode program. It depends on the shape of the model alone: were it chosen by the batch, a
request's sums would be ordered by its batch mates.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Tile:
    """Of one attention kernel: query rows and KV tokens of a tile, warps, and buffers of the pipeline."""

    rows: int
    tokens: int
    warps: int
    stages: int


class Shape(NamedTuple):
    """What tiles are chosen by."""

    capability: int  # 80, 90
    itemsize: int  # bytes of an element
    dim: int  # head size, padded to a power of two


SPLIT = 512  # KV tokens of one decode program
_FALLBACK = 80

# (capability, bytes of an element, head size): tile. Decode rows are the query heads of one KV head, padded to 16.
_DECODE = {
    (80, 2, 64): Tile(16, 64, 4, 3),
    (80, 2, 128): Tile(16, 64, 4, 3),
    (80, 2, 256): Tile(16, 32, 4, 3),
    (80, 4, 64): Tile(16, 32, 4, 3),
    (80, 4, 128): Tile(16, 16, 4, 3),
    (80, 4, 256): Tile(16, 16, 4, 3),
    (90, 2, 64): Tile(16, 128, 4, 3),
    (90, 2, 128): Tile(16, 64, 4, 3),
    (90, 2, 256): Tile(16, 32, 4, 3),
    (90, 4, 64): Tile(16, 32, 4, 3),
    (90, 4, 128): Tile(16, 16, 4, 3),
    (90, 4, 256): Tile(16, 16, 4, 3),
}
_PREFILL = {
    (80, 2, 64): Tile(64, 64, 4, 3),
    (80, 2, 128): Tile(64, 64, 4, 3),
    (80, 2, 256): Tile(64, 32, 8, 3),
    (80, 4, 64): Tile(32, 32, 4, 3),
    (80, 4, 128): Tile(16, 16, 4, 3),
    (80, 4, 256): Tile(16, 16, 8, 3),
    (90, 2, 64): Tile(128, 64, 4, 3),
    (90, 2, 128): Tile(128, 64, 8, 3),
    (90, 2, 256): Tile(64, 32, 8, 3),
    (90, 4, 64): Tile(32, 32, 4, 3),
    (90, 4, 128): Tile(16, 16, 4, 3),
    (90, 4, 256): Tile(16, 16, 8, 3),
}
# Where results that are left in float32 would spill.
_WIDE_PREFILL = _PREFILL | {(80, 2, 128): Tile(64, 64, 8, 3)}


def decode_tile(shape: Shape) -> Tile:
    """Return the tile of `decode.py` for a shape."""
    return _look_up(_DECODE, shape)


def prefill_tile(shape: Shape, *, wide: bool = False) -> Tile:
    """Return the tile of `prefill.py` for a shape; `wide`: its results are float32, whatever the queries are."""
    return _look_up(_WIDE_PREFILL if wide else _PREFILL, shape)


def _look_up(table: dict[tuple[int, int, int], Tile], shape: Shape) -> Tile:
    capability = max((known for known, _, _ in table if known <= shape.capability), default=_FALLBACK)
    dim = min(max(shape.dim, 64), 256)
    return table[capability, shape.itemsize, dim]
