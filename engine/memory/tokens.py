"""The token ids of full blocks, three bytes each.

They are most of what a block costs here, and no vocabulary has 2²⁴ tokens.
"""

import struct
from collections.abc import Sequence

import numpy as np

from engine.errors import InvariantError
from engine.request import BlockId

_BYTES = 3  # of a token, little-endian: an int32 without its highest byte
_BITS = 8 * _BYTES


class BlockTokens:
    """A row of token ids for each block."""

    __slots__ = ("_block_size", "_pack", "_rows", "_width", "_zeros")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._width = _BYTES * block_size
        self._rows = np.zeros(num_blocks * self._width, dtype=np.uint8).data  # committed by the system as it is written
        self._pack = struct.Struct(f"<{block_size}i").pack
        self._zeros = bytes(block_size)

    def put(self, block: BlockId, token_ids: Sequence[int]) -> None:
        """Write the token ids of a full block down."""
        row = bytearray(self._pack(*token_ids))
        if row[_BYTES::4] != self._zeros:
            raise InvariantError(f"block {block} gets a token id below 0 or above {(1 << _BITS) - 1}")
        del row[_BYTES::4]
        start = block * self._width
        self._rows[start : start + self._width] = row

    def get(self, block: BlockId) -> list[int]:
        """Return the token ids of a block."""
        return unpack(self.packed(block))

    def packed(self, block: BlockId) -> bytes:
        """Return the same, three bytes each: see `unpack`."""
        start = block * self._width
        return bytes(self._rows[start : start + self._width])

    def best(self, blocks: Sequence[int], token_ids: Sequence[int]) -> tuple[int, int]:
        """Return the first block whose tokens agree longest with `token_ids`, and how many do; (-1, 0) for none.

        `token_ids` has a block's number of tokens, or fewer.
        """
        wanted = sum(token << _BITS * place for place, token in enumerate(token_ids))
        width, best, most = _BYTES * len(token_ids), -1, 0
        for block in blocks:
            start = block * self._width
            differing = int.from_bytes(self._rows[start : start + width], "little") ^ wanted
            lowest_bit = (differing & -differing).bit_length() - 1
            count = lowest_bit // _BITS if differing else len(token_ids)
            if count > most:
                best, most = block, count
        return best, most


def unpack(packed: bytes) -> list[int]:
    """Return the token ids of a packed row."""
    return [int.from_bytes(packed[place : place + _BYTES], "little") for place in range(0, len(packed), _BYTES)]
