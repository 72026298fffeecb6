"""What is remembered of every block that was asked for, whether it is cached or not: eight bytes each.

    cell   mark 12 | score 8 | score 8 | class 8 | turn 4 | hits 4 | last use 20       bits; the mark is never 0

There is one cell for a key, and the newest key to want a cell gets it. With c cells a key is still known with
probability exp(-n / c) after n others. There are one to two cells for each cached block, and up to 65,536 for an
account with fewer: a small cache must remember far more than it holds, or it would learn that nothing ever comes back.
A wrong key is taken for a known one in one of 4,095 look-ups, which costs a block some undeserved recency and nothing
else.

Scores are twentieths of a natural logarithm: how much likelier than usual a block is to be asked for again. Two
predictors have one each (guard.py). Seconds are counted modulo twelve days.
"""

from collections.abc import Sequence
from typing import NamedTuple, NewType

import numpy as np
from numpy.typing import NDArray

BlockKey = NewType("BlockKey", bytes)  # 32 bytes of SHA-256 over namespace, model, KV format, parent key and tokens

MOST_HITS = 15
MOST_TURNS = 15
NO_SCORE = 128  # as a byte: a score of 0
SCORE_STEPS = 20.0  # of a byte, for each natural logarithm
MOST_SCORE = 6.3
FIRST_CELLS = 256
FLOOR_CELLS = 1 << 16
_MARK, _SCORES, _CLASS, _TURN, _HITS = 52, (44, 36), 28, 24, 20
_SECONDS = (1 << 20) - 1
_FORETOLD = (1 << _MARK) - (1 << _TURN)  # scores, class and turn
_UNFORETOLD = NO_SCORE << _SCORES[0] | NO_SCORE << _SCORES[1]

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Sight(NamedTuple):
    """What was known of the blocks of one prompt when it came; arrays have an element for each block, in order."""

    hits: Bytes  # times that it was asked for before
    gap: Floats  # seconds since it was last asked for; -1 where it was never
    classes: Bytes  # that the hazard table put it into then; see hazard.py
    turns: Bytes  # the turn that it first came in
    turn: int  # of the prompt: one more than that of the last block of its known beginning, 0 for a new conversation
    num_known: int  # blocks of the known beginning


class Sightings:
    """Remembers blocks by name: the first eight bytes of a key, as an unsigned integer."""

    __slots__ = ("_cells", "_mask", "_num_new", "_view")

    def __init__(self) -> None:
        self._set(np.zeros(FIRST_CELLS, np.uint64))
        self._num_new = 0  # names that had no cell

    @property
    def num_cells(self) -> int:
        """Names that can be remembered at most."""
        return len(self._cells)

    def fit(self, num_blocks: int) -> None:
        """Have room for a cache of `num_blocks` blocks."""
        while self.num_cells < num_blocks:
            self._grow()

    def look(self, names: Words, now: float) -> Sight:
        """Return what is known of the blocks of a prompt; change nothing."""
        cells = self._cells[names & self._mask]
        known = (cells >> _MARK) == _marks(names)
        hits = np.where(known, np.minimum((cells >> _HITS & 15) + 1, MOST_HITS), 0).astype(np.uint8)
        age = (np.uint64(int(now) & _SECONDS) - cells) & _SECONDS
        gap = np.where(known, age.astype(np.float32), np.float32(-1))
        num_known = len(names) if known.all() else int(known.argmin())
        turns = (cells >> _TURN & 15).astype(np.uint8)
        turn = min(int(turns[num_known - 1]) + 1, MOST_TURNS) if num_known else 0
        turns[num_known:] = turn
        return Sight(hits, gap, (cells >> _CLASS & 255).astype(np.uint8), turns, turn, num_known)

    def note(self, names: Words, sight: Sight, now: float, classes: Bytes, scores: Sequence[Bytes]) -> None:
        """Remember that a prompt was asked for: what was seen of it before, and what is foretold of it."""
        self._count(int((sight.gap < 0).sum()))
        cells = _marks(names) << _MARK | classes.astype(np.uint64) << _CLASS
        cells |= sight.turns.astype(np.uint64) << _TURN | sight.hits.astype(np.uint64) << _HITS
        cells |= np.uint64(int(now) & _SECONDS)
        for number, place in enumerate(_SCORES):
            cells |= (
                np.uint64(NO_SCORE << place) if number >= len(scores) else scores[number].astype(np.uint64) << place
            )
        self._cells[(names & self._mask)[::-1]] = cells[::-1]  # of two in one cell the first one of the prompt stays

    def recall(self, key: BlockKey) -> int | None:
        """Return the number of earlier uses that a key's newest one had; None for an unknown key."""
        cell = self._cell(int.from_bytes(key[:8], "little"))
        return cell >> _HITS & 15 if cell else None

    def score(self, key: BlockKey, number: int) -> int:
        """Return what a predictor has foretold of a key, as a byte; `NO_SCORE` of an unknown one."""
        cell = self._cell(int.from_bytes(key[:8], "little"))
        return cell >> _SCORES[number] & 255 if cell else NO_SCORE

    def follow(self, key: BlockKey, before: BlockKey | None, now: float) -> None:
        """Remember part of an answer, which nobody has asked for yet: like what it continues, but for its hits."""
        name = int.from_bytes(key[:8], "little")
        model = self._cell(int.from_bytes(before[:8], "little")) if before is not None else 0
        kept = model & _FORETOLD if model else _UNFORETOLD
        self._count(1)
        self._view[name & int(self._mask)] = _mark(name) << _MARK | kept | int(now) & _SECONDS

    def _cell(self, name: int) -> int:
        cell = self._view[name & int(self._mask)]
        return cell if cell >> _MARK == _mark(name) else 0

    def _count(self, num_new: int) -> None:
        """Make room for new names, before they are written."""
        self._num_new += num_new
        while 2 * self._num_new > self.num_cells and self.num_cells < FLOOR_CELLS:
            self._grow()

    def _grow(self) -> None:
        # A name's cell in the doubled table is its old one or that one's copy; the other copy is soon overwritten.
        self._set(np.concatenate((self._cells, self._cells)))

    def _set(self, cells: Words) -> None:
        self._cells = cells
        self._mask = np.uint64(len(cells) - 1)
        self._view = memoryview(cells.data)  # one cell of it takes a quarter of the time


def to_bytes(scores: NDArray[np.floating]) -> Bytes:
    """Return scores as they are kept: a logarithm of 6.3 at most, up or down."""
    steps = np.rint(np.clip(scores, -MOST_SCORE, MOST_SCORE) * SCORE_STEPS) + NO_SCORE
    result: Bytes = steps.astype(np.uint8)
    return result


def names_of(keys: Sequence[BlockKey]) -> Words:
    """Return the names of some keys."""
    names: Words = np.frombuffer(b"".join(keys), dtype="<u8").reshape(len(keys), -1)[:, 0]
    return names


def _mark(name: int) -> int:
    return max(1, name >> 52)


def _marks(names: Words) -> Words:
    marks: Words = np.maximum(names >> _MARK, np.uint64(1))
    return marks
