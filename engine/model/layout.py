"""A step's sequences laid end to end, as host arrays: what the model is told of them."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from engine.step import SequenceStep

Array = np.ndarray[Any, Any]

_PADDING_SLOT = -1  # writes nothing


class Layout(NamedTuple):
    """T tokens of S sequences, of which N are sampled."""

    token_ids: Array  # [T] int64; negative: a placeholder
    slots: Array  # [T] int64
    positions: Array  # [T] int32
    query_starts: Array  # [S + 1] int32
    contexts: Array  # [S] int32
    rows: Array  # [S] int32
    sampled: Array  # [N] int64: which tokens' logits are wanted
    max_query: int
    max_context: int
    num_decodes: int  # sequences of one token before the first longer one

    @property
    def only_decodes(self) -> bool:
        """Whether every sequence has one token and is sampled behind it."""
        return self.max_query == 1 and self.sampled.shape == self.rows.shape


class DecodeArrays(NamedTuple):
    """Sequences of one token, as many as a graph takes: `[B]` each."""

    token_ids: Array  # int64
    slots: Array  # int64
    positions: Array  # int32
    contexts: Array  # int32
    rows: Array  # int32


def lay_out(parts: Sequence[SequenceStep], table: Array, block_size: int) -> Layout:
    """Return the layout of `parts`; `table` is the block table as it is in this step, `[rows, columns]` int32."""
    count = len(parts)
    lengths = np.fromiter((len(part.token_ids) for part in parts), np.int32, count)
    starts = np.fromiter((part.start for part in parts), np.int32, count)
    rows = np.fromiter((part.row for part in parts), np.int32, count)
    wanted = np.fromiter((part.sampling is not None for part in parts), np.bool_, count)
    query_starts = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    token_ids = np.fromiter(chain.from_iterable(part.token_ids for part in parts), np.int64, query_starts[-1])
    within = np.arange(query_starts[-1], dtype=np.int32) - np.repeat(query_starts[:-1], lengths)
    positions = within + np.repeat(starts, lengths)
    blocks = table[np.repeat(rows, lengths), positions // block_size].astype(np.int64)
    contexts = starts + lengths
    longer = np.flatnonzero(lengths != 1)
    return Layout(
        token_ids=token_ids,
        slots=blocks * block_size + positions % block_size,
        positions=positions,
        query_starts=query_starts,
        contexts=contexts,
        rows=rows,
        sampled=query_starts[1:][wanted].astype(np.int64) - 1,
        max_query=int(lengths.max()),
        max_context=int(contexts.max()),
        num_decodes=int(longer[0]) if longer.size else count,
    )


def padded(layout: Layout | None, size: int, row: int) -> DecodeArrays:
    """Return a layout of decodes as `size` sequences: those behind its own write nothing and read one slot of `row`.

    None: all of them are such.
    """
    arrays = DecodeArrays(
        token_ids=np.zeros(size, dtype=np.int64),
        slots=np.full(size, _PADDING_SLOT, dtype=np.int64),
        positions=np.zeros(size, dtype=np.int32),
        contexts=np.ones(size, dtype=np.int32),
        rows=np.full(size, row, dtype=np.int32),
    )
    if layout is not None:
        count = len(layout.rows)
        arrays.token_ids[:count] = layout.token_ids
        arrays.slots[:count] = layout.slots
        arrays.positions[:count] = layout.positions
        arrays.contexts[:count] = layout.contexts
        arrays.rows[:count] = layout.rows
    return arrays
