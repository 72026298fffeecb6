"""Attention of sequences larger than their share of the pool: their leading blocks are in host memory alone.

Where kernels read slabs in place, as on a CPU, they do so, block by block in the order of the context (`in_place`), and
the result is the same to the bit. A GPU has them brought, layer by layer, through two staging buffers:

    stream   piece 0 ▸ A │ piece 1 ▸ B │ piece 2 ▸ A │ …          of one layer, then of the next
    step        resident │     piece 0 │     piece 1 │ …          parts with log-sum-exps, joined as they come

The next piece is on its way while one is attended to, and the first of the next layer while the rest of a layer is
computed. Blocks in the pages are attended to as a sequence of their own, whose table row begins behind the hosted ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from engine.errors import CoreError
from engine.model.lanes import Event, Lane
from engine.model.layout import Array, Layout
from engine.model.link import Side
from engine.model.slabs import Slabs
from engine.step import SequenceStep
from kernels.batch import AttentionBatch, AttentionForm, Hosted, Stream
from kernels.ops import Ops
from kernels.pages import LayerPages, Pages, PageShape

STAGE_BYTES = 4 << 20  # of a buffer: enough to keep the bus busy, and little of a pool
_JOIN_BYTES = 16 << 20  # of parts that wait to be joined


def check_hosted(parts: Sequence[SequenceStep], block_size: int, step: int) -> bool:
    """Whether any sequence has hosted blocks.

    Raises:
        CoreError: one has more than the tokens before this step fill.
    """
    for part in parts:
        if len(part.hosted) * block_size > part.start:
            raise CoreError(
                f"step {step}: sequence {part.sequence} has {len(part.hosted)} blocks in host memory, "
                f"but computes from token {part.start}"
            )
    return any(part.hosted for part in parts)


def in_place(parts: Sequence[SequenceStep], slabs: Slabs, block_size: int, lane: Lane) -> Hosted:
    """Return the sequences' hosted blocks for kernels that read slabs."""
    table = np.zeros((len(parts), max(len(part.hosted) for part in parts)), dtype=np.int32)
    for index, part in enumerate(parts):
        table[index, : len(part.hosted)] = part.hosted
    tokens = np.array([len(part.hosted) * block_size for part in parts], dtype=np.int32)
    there, counts = lane.send(table, tokens)
    return Hosted(slabs=slabs.arena, table=there, tokens=counts)


class _Part(NamedTuple):
    """Some of a step's sequences, and their tokens in the step."""

    tokens: torch.Tensor | None  # int64; None: all of them
    batch: AttentionBatch

    def of(self, query: torch.Tensor) -> torch.Tensor:
        """Return the queries of these tokens."""
        return query if self.tokens is None else query[self.tokens]


class _Piece(NamedTuple):
    """Hosted blocks that are brought together."""

    slabs: torch.Tensor  # int64
    batch: AttentionBatch
    distance: int  # from its last token to the first query, the least of its sequences: wider windows see it


class _Buffer(NamedTuple):
    """Where a piece is brought to."""

    pages: Pages  # of one layer
    filled: Event
    used: Event


class Streaming:
    """The two buffers of a runner, and the stream that fills them."""

    def __init__(self, ops: Ops, slabs: Slabs, shape: PageShape, side: Side) -> None:
        self.ops, self._slabs, self.block_size = ops, slabs, shape.block_size
        self.num_layers = shape.num_layers
        self._stream = side.stream()
        self.size = max(1, STAGE_BYTES // (shape.block_elements * ops.dtype.itemsize))  # blocks of a buffer
        own = replace(shape, num_layers=1, num_blocks=self.size)
        self._buffers = tuple(_Buffer(ops.empty_pages(own), side.event(), side.event()) for _ in range(2))
        self._begun = side.event()
        self._places = torch.arange(2 * self.size, device=ops.device)
        self.table = self._places.to(torch.int32).as_strided((self.size + 1, self.size), (1, 1))  # row r: r, r + 1, ...
        self._turn = 0
        self.windows: dict[int, int] = {}  # of layers, as they were asked for

    def start(self, parts: Sequence[SequenceStep], layout: Layout, batch: AttentionBatch, lane: Lane) -> "StreamedStep":
        """Return the attention of a step, behind all that has been launched."""
        step = StreamedStep(self, parts, layout, batch, lane)
        self._begun.record()
        with self._stream.entered():
            self._begun.wait()
        return step

    def fetch(self, layer: int, slabs: torch.Tensor) -> _Buffer:
        """Start to bring a layer of slabs; the buffer's `filled` is behind it."""
        buffer = self._buffers[self._turn]
        self._turn = 1 - self._turn
        with self._stream.entered():
            buffer.used.wait()
            arena = self._slabs.arena[:, layer : layer + 1]
            self.ops.scatter_blocks(arena, buffer.pages, self._places[: len(slabs)], places=slabs)
            buffer.filled.record()
        return buffer


class StreamedStep(Stream):
    """The attention of one step."""

    def __init__(
        self, streaming: Streaming, parts: Sequence[SequenceStep], layout: Layout, batch: AttentionBatch, lane: Lane
    ) -> None:
        self._streaming, self._ops = streaming, streaming.ops
        hosted = [index for index, part in enumerate(parts) if part.hosted]
        others = [index for index, part in enumerate(parts) if not part.hosted]
        self._resident = _resident(hosted, parts, layout, batch, lane, streaming.block_size)
        self._others = _some(others, layout, batch, lane) if others else None
        self._pieces = _pieces([parts[index] for index in hosted], self._resident.batch, lane, streaming)
        self._fetched: tuple[int, int, _Buffer] | None = None  # layer, piece

    def attend(self, query: torch.Tensor, pages: LayerPages, form: AttentionForm) -> torch.Tensor:
        """See `Stream.attend`."""
        self._streaming.windows[pages.layer] = form.window
        own = self._resident.of(query)
        joined = _Joined(self._ops, *self._ops.partial_attention(own, pages, self._resident.batch, form))
        wanted = self._seen(form.window)
        if not wanted:
            self._drop()
        for at, number in enumerate(wanted):
            buffer = self._take(pages.layer, number)
            self._fetch_next(pages.layer, wanted[at + 1 :])
            buffer.filled.wait()
            joined.add(*self._ops.partial_attention(own, buffer.pages.layers[0], self._pieces[number].batch, form))
            buffer.used.record()
        found = joined.result().flatten(1)
        if self._others is None:
            return found
        out = found.new_empty((query.shape[0], found.shape[1]))
        out[self._resident.tokens] = found
        out[self._others.tokens] = self._ops.paged_attention(self._others.of(query), pages, self._others.batch, form)
        return out

    def _seen(self, window: int) -> list[int]:
        """Return the pieces that some query sees."""
        return [number for number, piece in enumerate(self._pieces) if not window or piece.distance < window]

    def _take(self, layer: int, number: int) -> _Buffer:
        """Return the buffer that a piece is being brought to."""
        if self._fetched is not None and self._fetched[:2] == (layer, number):
            buffer, self._fetched = self._fetched[2], None
            return buffer
        self._drop()
        return self._streaming.fetch(layer, self._pieces[number].slabs)

    def _drop(self) -> None:
        """Let go of what was brought in vain, as where a layer's window was not known yet."""
        if self._fetched is not None:
            self._fetched[2].filled.wait()
            self._fetched = None

    def _fetch_next(self, layer: int, left: Sequence[int]) -> None:
        """Start to bring what follows: a piece of this layer, or the first of the next one that has any."""
        while not left and layer + 1 < self._streaming.num_layers:
            layer += 1
            left = self._seen(self._streaming.windows.get(layer, 0))
        if left:
            self._fetched = layer, left[0], self._streaming.fetch(layer, self._pieces[left[0]].slabs)


class _Joined:
    """Parts of attention, joined when they have become many."""

    def __init__(self, ops: Ops, parts: torch.Tensor, lse: torch.Tensor) -> None:
        self._ops = ops
        self._parts, self._lse = [parts], [lse]

    def add(self, parts: torch.Tensor, lse: torch.Tensor) -> None:
        """Take further parts."""
        self._parts.append(parts)
        self._lse.append(lse)
        if sum(one.nbytes for one in self._parts) > _JOIN_BYTES:
            parts, lse = torch.cat(self._parts), torch.cat(self._lse)
            self._parts = [self._ops.merge_partials(parts, lse, dtype=torch.float32)[None]]
            self._lse = [lse.logsumexp(0, keepdim=True)]

    def result(self) -> torch.Tensor:
        """Return the whole, `[T, H, D]`."""
        return self._ops.merge_partials(torch.cat(self._parts), torch.cat(self._lse))


def _some(indices: Sequence[int], layout: Layout, batch: AttentionBatch, lane: Lane) -> _Part:
    """Return some of a step's sequences as a batch of their own."""
    return _cut(indices, layout.rows[indices], layout.contexts[indices], layout, batch, lane)


def _resident(
    indices: Sequence[int],
    parts: Sequence[SequenceStep],
    layout: Layout,
    batch: AttentionBatch,
    lane: Lane,
    block_size: int,
) -> _Part:
    """Return sequences with hosted blocks as if these were not there: a row of the table may begin at any cell."""
    hosted = np.array([len(parts[index].hosted) for index in indices], dtype=np.int32)
    num_rows, num_columns = batch.block_table.shape
    rows = layout.rows[indices] * num_columns + hosted
    contexts = layout.contexts[indices] - hosted * block_size
    width = -(-int(contexts.max()) // block_size)
    cells = batch.block_table.as_strided((num_rows * num_columns - width + 1, width), (1, 1))
    return _cut(indices, rows, contexts, layout, replace(batch, block_table=cells), lane)


def _cut(
    indices: Sequence[int], rows: Array, contexts: Array, layout: Layout, batch: AttentionBatch, lane: Lane
) -> _Part:
    """Return a batch of the sequences `indices`, in their order."""
    starts, ends = layout.query_starts[:-1][indices], layout.query_starts[1:][indices]
    lengths = ends - starts
    tokens = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
    query_starts = np.array([0, *accumulate(lengths.tolist())], dtype=np.int32)
    there = lane.send(tokens, query_starts, contexts, rows)
    longer = np.flatnonzero(lengths != 1)
    cut = replace(
        batch,
        query_starts=there[1],
        contexts=there[2],
        rows=there[3],
        max_query=int(lengths.max()),
        max_context=int(contexts.max()),
        num_decodes=int(longer[0]) if longer.size else len(indices),
    )
    return _Part(None if len(tokens) == len(layout.token_ids) else there[0], cut)


def _pieces(parts: Sequence[SequenceStep], batch: AttentionBatch, lane: Lane, streaming: Streaming) -> list[_Piece]:
    """Cut the hosted blocks of sequences, laid end to end, into pieces of a buffer's size."""
    size, step = streaming.block_size, streaming.size
    counts = np.array([len(part.hosted) for part in parts])
    firsts = np.cumsum(counts) - counts  # of each sequence, among all
    starts = np.array([part.start for part in parts])
    ends = starts + [len(part.token_ids) for part in parts]
    slabs = np.concatenate([np.array(part.hosted, dtype=np.int64) for part in parts])
    pieces = []
    for begin in range(0, len(slabs), step):
        low, high = np.clip(begin - firsts, 0, counts), np.clip(begin + step - firsts, 0, counts)
        here = high > low
        there = lane.send(
            slabs[begin : begin + step],
            (ends - np.where(here, low, 0) * size).astype(np.int32),
            ((high - low) * size).astype(np.int32),
            np.where(here, firsts + low - begin, 0).astype(np.int32),
        )
        cut = replace(
            batch,
            contexts=there[1],
            limits=there[2],
            rows=there[3],
            block_table=streaming.table,
            max_context=int((high - low).max()) * size,
        )
        pieces.append(_Piece(there[0], cut, int((starts - high * size + 1)[here].min())))
    return pieces
