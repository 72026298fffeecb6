"""Steps of decodes alone as graphs: recorded at start for buckets of batch and context, replayed with one launch.

    graphs = DecodeGraphs(forward, table, max_context)
    graphs.record(CudaCapture(device, spared_bytes))
    logits = graphs.run(layout, lane)     # by the smallest graph that fits; None: no graph does

A graph computes its bucket's number of sequences; those beyond the step's own are padding: they write nothing, and read
one slot of the table's last row, which no sequence has. Inputs lie at fixed addresses, to which a step's one copy
writes, and logits are left at another.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from engine.model.capture import Capture, out_of_memory
from engine.model.lanes import Lane, pack, places, unpack
from engine.model.layout import Layout, padded
from kernels.batch import AttentionBatch
from kernels.triton_ops.tuning import SPLIT

_log = logging.getLogger("tollgate.model")

Forward = Callable[[torch.Tensor, AttentionBatch, torch.Tensor], torch.Tensor]
"""Token ids, batch and the indices of the tokens whose logits are wanted, to logits; see `Decoder.forward`."""


class Bucket(NamedTuple):
    """What one graph can compute."""

    batch: int  # sequences
    context: int  # tokens of the longest one


def batch_buckets(limit: int) -> list[int]:
    """Return 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, … up to `limit` and with it."""
    sizes, size = [1, 2, 4, 8], 16
    while size < limit:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [one for one in sizes if one < limit] + [limit]


def context_buckets(limit: int) -> list[int]:
    """Return tokens of 1, 4, 16, … parts of a decode's context, up to as many as `limit` tokens have."""
    most = -(-limit // SPLIT)
    parts, count = [], 1
    while count < most:
        parts.append(count)
        count *= 4
    return [SPLIT * one for one in (*parts, most)]


class DecodeGraphs:
    """The graphs of one model over its pool."""

    def __init__(self, forward: Forward, table: torch.Tensor, max_context: int) -> None:
        """Prepare for batches of all rows of `table` but the last, the padding's, and contexts of `max_context`."""
        self._forward, self._table = forward, table
        self._row = table.shape[0] - 1
        self._batches, self._contexts = batch_buckets(self._row), context_buckets(max_context)
        arrays = padded(None, self._row, self._row)
        self._inputs = torch.empty(places(arrays)[-1].end, dtype=torch.uint8, device=table.device)
        self._every = torch.arange(self._row, device=table.device)
        self._starts = torch.arange(self._row + 1, dtype=torch.int32, device=table.device)
        self._logits: torch.Tensor | None = None
        self._replays: dict[Bucket, Callable[[], None]] = {}

    @property
    def buckets(self) -> list[Bucket]:
        """What has been recorded."""
        return sorted(self._replays)

    def record(self, capture: Capture) -> None:
        """Record a graph for every bucket, the largest first, so that the others find their memory.

        What cannot be recorded runs without a graph, and the log says so.
        """
        began, refused = time.perf_counter(), ""
        wanted = [Bucket(batch, context) for batch in self._batches for context in self._contexts]
        for bucket in sorted(wanted, key=lambda one: one.batch * one.context, reverse=True):
            try:
                self._replays[bucket] = capture(self._prepared(bucket))
            except RuntimeError as error:
                if out_of_memory(error):
                    refused = f"batch {bucket.batch}, context {bucket.context}: {error}"
                    continue
                _log.exception("graphs: recording failed, so every step is launched kernel by kernel, which is slower")
                self._replays.clear()
                break
        if refused:
            _log.warning("graphs: no memory for some, which are slower without; the smallest: %s", refused)
        _log.info(
            "graphs: %d of %d recorded for decodes of up to %d sequences and %d tokens, in %.1f s, %d MiB",
            len(self._replays),
            len(wanted),
            max((one.batch for one in self._replays), default=0),
            max((one.context for one in self._replays), default=0),
            time.perf_counter() - began,
            capture.held_bytes() >> 20,
        )

    def run(self, layout: Layout, lane: Lane) -> torch.Tensor | None:
        """Compute a step by a graph.

        Returns:
            Logits `[S, vocab]`, which the next graph overwrites; None if the step is not of decodes alone, all sampled,
            or no graph is large enough.
        """
        if not layout.only_decodes:
            return None
        bucket = self._smallest(len(layout.rows), layout.max_context)
        if bucket is None or self._logits is None:
            return None
        lane.fill(self._inputs, padded(layout, bucket.batch, self._row))
        self._replays[bucket]()
        return self._logits[: len(layout.rows)]

    def _smallest(self, batch: int, context: int) -> Bucket | None:
        row, column = bisect_left(self._batches, batch), bisect_left(self._contexts, context)
        if row == len(self._batches) or column == len(self._contexts):
            return None
        bucket = Bucket(self._batches[row], self._contexts[column])
        return bucket if bucket in self._replays else None

    def _prepared(self, bucket: Bucket) -> Callable[[], None]:
        """Return what computes a bucket from `_inputs`, which hold nothing but padding for now."""
        arrays = padded(None, bucket.batch, self._row)
        packed = np.zeros(places(arrays)[-1].end, dtype=np.uint8)
        pack(arrays, packed)
        self._inputs[: len(packed)].copy_(torch.from_numpy(packed))
        token_ids, slots, positions, contexts, rows = unpack(self._inputs, arrays)
        batch = AttentionBatch(
            positions=positions,
            slots=slots,
            query_starts=self._starts[: bucket.batch + 1],
            contexts=contexts,
            rows=rows,
            block_table=self._table,
            max_query=1,
            max_context=bucket.context,
            num_decodes=bucket.batch,
        )
        every = self._every[: bucket.batch]
        if self._logits is None:
            found = self._forward(token_ids, batch, every)
            self._logits = found.new_empty((self._row, found.shape[-1]))
        logits = self._logits[: bucket.batch]

        def run() -> None:
            logits.copy_(self._forward(token_ids, batch, every))

        return run
