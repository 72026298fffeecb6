"""Attention of ragged chunks: several query tokens a sequence, from a verification's handful to a prefill's thousands.

A program takes one KV head and a tile of rows: consecutive query tokens times the query heads that share the KV head,
so that a page is read once for all of them. Which sequence a tile belongs to is found by bisection: no host knows how
the tiles fall when a graph is replayed. Source: FlashAttention-2 (arXiv 2307.08691).
"""

import torch
import triton
import triton.language as tl

from kernels.batch import AttentionBatch, AttentionForm
from kernels.pages import LayerPages
from kernels.triton_ops.form import form_arguments
from kernels.triton_ops.launch import Launch, power_of_two
from kernels.triton_ops.paging import cap, load_blocks, load_keys, load_values, log_sum, slot_offsets
from kernels.triton_ops.tuning import Shape, prefill_tile


@triton.jit
def _sequence_of(tile, starts, num_sequences, BLOCK_Q: tl.constexpr):
    """Return the last sequence whose first tile is not after `tile`; sequence s begins with tile starts[s] / Q + s."""
    base = tl.load(starts)
    low, high = num_sequences * 0, num_sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        if (tl.load(starts + middle) - base) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _sweep(
    acc, top, total, q, positions, pages, row, head, first, last, oldest, end, scale, soft_cap, window,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take KV tokens `[first, last)` into the online softmax. Without MASKED every row sees every token of them."""
    lane, dims = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    blocks = load_blocks(row, first + lane, end, SLOTS)
    for start in range(first, last, BLOCK_N):
        tokens = start + lane
        kept = tokens < end
        if WINDOWED and MASKED:
            kept = kept & (tokens >= oldest)  # before the window of every row a slot may hold NaN
        offsets = slot_offsets(blocks, tokens, head, KV_HEADS, SLOTS, DIM)
        blocks = load_blocks(row, tokens + BLOCK_N, end, SLOTS)
        k = load_keys(pages, offsets, dims, kept, DIM, BLOCK_D)
        scores = cap(tl.dot(q, k, input_precision=PRECISION) * scale, soft_cap, CAPPED)
        if MASKED:
            seen = kept[None, :] & (tokens[None, :] <= positions[:, None])
            if WINDOWED:
                seen = seen & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(peak == float("-inf"), 0.0, peak)  # a row that has seen nothing yet
        weights = tl.exp(scores - safe[:, None])
        shrink = tl.exp(top - safe)
        v = load_values(pages + KV_HEADS * SLOTS * DIM, offsets, dims, kept, DIM, BLOCK_D)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        total = total * shrink + tl.sum(weights, 1)
        top = peak
    return acc, top, total


@triton.jit(do_not_specialize=["num_sequences"])
def prefill_kernel(
    out, lse, query, pages, table, rows, starts, contexts, limits, query_stride, table_stride, num_sequences,
    scale, soft_cap, window,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, LIMITED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write `out[token]` `[H, D]` and `lse[token]` `[H]` of one tile; `starts` are the sequences' first tokens.

    LIMITED: tokens from `limits[sequence]` on are not there.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    sequence = _sequence_of(tile, starts, num_sequences, BLOCK_Q)
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
    chosen = (tile - (begin - tl.load(starts)) // BLOCK_Q - sequence) * BLOCK_Q  # first query of the tile
    if chosen < length:
        context = tl.load(contexts + sequence)
        lines, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        index = chosen + lines // GROUP
        real = (lines < BLOCK_Q * GROUP) & (index < length)
        heads = head * GROUP + lines % GROUP
        at = (begin + index).to(tl.int64)
        mask = real[:, None] & (dims < DIM)[None, :]
        q = tl.load(query + at[:, None] * query_stride + heads[:, None] * DIM + dims[None, :], mask=mask, other=0.0)
        row = table + tl.load(rows + sequence).to(tl.int64) * table_stride

        positions = context - length + index
        lowest = context - length + chosen  # of the tile's positions
        end = tl.minimum(lowest + BLOCK_Q, context)
        unseen = end - window  # by the last row, before it
        diagonal = lowest + 1  # before it, every row sees every token
        if LIMITED:
            end = tl.minimum(end, tl.load(limits + sequence))
            diagonal = tl.minimum(diagonal, end)
        diagonal = diagonal // BLOCK_N * BLOCK_N

        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        full = 0
        oldest = tl.maximum(lowest - window + 1, 0)
        if WINDOWED:  # but for those that are before the last row's window
            first = oldest // BLOCK_N * BLOCK_N
            full = tl.maximum(unseen, 0)
            full = tl.minimum((full + BLOCK_N - 1) // BLOCK_N * BLOCK_N, diagonal)
            acc, top, total = _sweep(
                acc, top, total, q, positions, pages, row, head, first, full, oldest, end, scale, soft_cap, window,
                KV_HEADS, DIM, SLOTS, BLOCK_D, BLOCK_N, CAPPED, WINDOWED, PRECISION, True,
            )  # fmt: skip
        acc, top, total = _sweep(
            acc, top, total, q, positions, pages, row, head, full, diagonal, oldest, end, scale, soft_cap, window,
            KV_HEADS, DIM, SLOTS, BLOCK_D, BLOCK_N, CAPPED, WINDOWED, PRECISION, False,
        )  # fmt: skip
        acc, top, total = _sweep(
            acc, top, total, q, positions, pages, row, head, diagonal, end, oldest, end, scale, soft_cap, window,
            KV_HEADS, DIM, SLOTS, BLOCK_D, BLOCK_N, CAPPED, WINDOWED, PRECISION, True,
        )  # fmt: skip
        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        place = at * (KV_HEADS * GROUP) + heads
        tl.store(out + place[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty), mask=mask)
        tl.store(lse + place, log_sum(top, total), mask=real)


def prefill_launch(
    query: torch.Tensor,
    pages: LayerPages,
    batch: AttentionBatch,
    form: AttentionForm,
    capability: int,
    *,
    wide: bool = False,
) -> tuple[Launch, torch.Tensor, torch.Tensor]:
    """Prepare the attention of `query` `[T, H, D]` for the batch's sequences behind its decodes.

    Returns:
        The launch; the outputs `[T, H, D]`, of which those of decodes are not written, float32 if they are to be
        `wide`; their log-sum-exp `[T, H]`.
    """
    tokens, heads, dim = query.shape
    skipped, num_sequences = batch.num_decodes, batch.num_sequences - batch.num_decodes
    shape = pages.shape
    padded = power_of_two(dim)
    tile = prefill_tile(Shape(capability, query.element_size(), padded), wide=wide)
    group = heads // shape.num_kv_heads
    lines = max(tile.rows, power_of_two(group))
    out = torch.empty((tokens, heads, dim), dtype=torch.float32 if wide else query.dtype, device=query.device)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=query.device)
    arguments = {
        "out": out,
        "lse": lse,
        "query": query,
        "pages": pages.data,
        "table": batch.block_table,
        "rows": batch.rows[skipped:],
        "starts": batch.query_starts[skipped:],
        "contexts": batch.contexts[skipped:],
        "limits": (batch.contexts if batch.limits is None else batch.limits)[skipped:],
        "query_stride": query.stride(0),
        "table_stride": batch.block_table.stride(0),
        "num_sequences": num_sequences,
        **form_arguments(form, query.dtype),
        "LIMITED": batch.limits is not None,
        "GROUP": group,
        "KV_HEADS": shape.num_kv_heads,
        "DIM": dim,
        "SLOTS": shape.block_size,
        "BLOCK_M": lines,
        "BLOCK_Q": lines // group,
        "BLOCK_D": max(16, padded),
        "BLOCK_N": tile.tokens,
    }
    grid = ((tokens - skipped) // (lines // group) + num_sequences, shape.num_kv_heads)
    return Launch(prefill_kernel, grid, arguments, tile.warps, tile.stages), out, lse
