"""How often evicted blocks had been wanted: a table that forgets by itself.

A block that comes back after it was evicted was wanted again, though not found: that counts as a hit like any other.

A cell of 16 bits holds 12 bits of the key and a count of up to 15. There is one cell per key, and the newest key to
want a cell gets it: with c cells, a key is still known with probability exp(-n / c) after n others were noted. Four
to eight cells per cached block remember about as many evictions, for 8 to 16 bytes a block. A wrong key is taken for
a known one in one of 4,096 look-ups, which costs a block some undeserved recency and nothing else.
"""

from array import array

from engine.memory.eviction.base import BlockKey

MOST_COUNT = 15
_CELLS_PER_BLOCK = 4
_FIRST_CELLS = 1024


class KeyHistory:
    """Remembers hits by key. Grows with the cache that it serves, by doubling, and keeps what it knows."""

    __slots__ = ("_cells", "_mask")

    def __init__(self) -> None:
        self._cells = array("H", bytes(2 * _FIRST_CELLS))
        self._mask = _FIRST_CELLS - 1

    def fit(self, num_blocks: int) -> None:
        """Have room for a cache of `num_blocks` blocks."""
        while len(self._cells) < _CELLS_PER_BLOCK * num_blocks:
            # A key's cell in the doubled table is its old one or that one's copy; the other copy is soon overwritten.
            self._cells += self._cells
            self._mask = len(self._cells) - 1

    def note(self, key: BlockKey, hits: int) -> None:
        """Remember a block that leaves, and its hits."""
        value = int.from_bytes(key[:8], "little")
        self._cells[value & self._mask] = value >> 52 << 4 | min(hits + 1, MOST_COUNT)

    def recall(self, key: BlockKey) -> int:
        """Return the hits that were noted for this key and one more, for its return; 0 for an unknown one."""
        value = int.from_bytes(key[:8], "little")
        cell = self._cells[value & self._mask]
        return cell & 15 if cell >> 4 == value >> 52 else 0
