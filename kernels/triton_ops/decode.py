"""Decode attention: one query token a sequence, its KV split over programs.

A program takes one KV head of one sequence and SPLIT tokens of its context; the query heads that share the KV head are
the rows of one tensor-core tile, so that a page is read once for all of them. Each program leaves a normalised output
and the log-sum-exp of its scores, which `merge.py` joins. Source: Flash-Decoding; FlashInfer (arXiv 2501.01005).
"""

import torch
import triton
import triton.language as tl

from kernels.batch import AttentionBatch, AttentionForm
from kernels.pages import LayerPages
from kernels.triton_ops.form import form_arguments
from kernels.triton_ops.launch import Launch, power_of_two
from kernels.triton_ops.paging import cap, load_blocks, load_keys, load_values, log_sum, slot_offsets
from kernels.triton_ops.tuning import SPLIT, Shape, decode_tile


@triton.jit(do_not_specialize=["num_sequences"])
def decode_kernel(
    out, lse, query, pages, table, rows, contexts, limits, query_stride, table_stride, num_sequences,
    scale, soft_cap, window,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, LIMITED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write `out[split, sequence]` `[H, D]` and `lse[split, sequence]` `[H]`.

    A split without tokens has -inf, and only the first one has an output then. LIMITED: tokens from `limits[sequence]`
    on are not there.
    """
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts + sequence)
    first, oldest = split * SPLIT, 0
    end = tl.minimum(split * SPLIT + SPLIT, context)
    if LIMITED:
        end = tl.minimum(end, tl.load(limits + sequence))
    if WINDOWED:
        oldest = tl.maximum(context - window, 0)
        first = tl.maximum(first, oldest // BLOCK_N * BLOCK_N)
        if LIMITED:
            first = tl.where(end <= oldest, end, first)  # no tile without a token

    members, dims = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    real = (members < GROUP)[:, None] & (dims < DIM)[None, :]
    heads = head * GROUP + members
    at = (split * num_sequences + sequence).to(tl.int64) * (KV_HEADS * GROUP) + heads
    q = tl.load(
        query + sequence.to(tl.int64) * query_stride + heads[:, None] * DIM + dims[None, :], mask=real, other=0.0
    )
    row = table + tl.load(rows + sequence).to(tl.int64) * table_stride

    top = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    lane = tl.arange(0, BLOCK_N)
    blocks = load_blocks(row, first + lane, end, SLOTS)
    for start in range(first, end, BLOCK_N):
        tokens = start + lane
        kept = (tokens < end) & (tokens >= oldest)
        offsets = slot_offsets(blocks, tokens, head, KV_HEADS, SLOTS, DIM)
        blocks = load_blocks(row, tokens + BLOCK_N, end, SLOTS)
        k = load_keys(pages, offsets, dims, kept, DIM, BLOCK_D)
        scores = cap(tl.dot(q, k, input_precision=PRECISION) * scale, soft_cap, CAPPED)
        scores = tl.where(kept[None, :], scores, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, 1))  # finite: every tile of a split has a token
        weights = tl.exp(scores - peak[:, None])
        shrink = tl.exp(top - peak)
        v = load_values(pages + KV_HEADS * SLOTS * DIM, offsets, dims, kept, DIM, BLOCK_D)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        total = total * shrink + tl.sum(weights, 1)
        top = peak
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    written = real & ((first < end) | (split == 0))  # of a graph's splits most may lie past the context
    tl.store(out + at[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty), mask=written)
    tl.store(lse + at, log_sum(top, total), mask=members < GROUP)


def decode_launch(
    query: torch.Tensor,
    pages: LayerPages,
    batch: AttentionBatch,
    form: AttentionForm,
    capability: int,
    *,
    wide: bool = False,
) -> tuple[Launch, torch.Tensor, torch.Tensor]:
    """Prepare the attention of `query` `[S, H, D]`, one token of each of the batch's first S sequences.

    Returns:
        The launch; the outputs `[P, S, H, D]`, float32 unless P is 1 and it is not to be `wide`; their log-sum-exp
        `[P, S, H]` float32.
    """
    num_sequences, heads, dim = query.shape
    shape = pages.shape
    padded = power_of_two(dim)
    tile = decode_tile(Shape(capability, query.element_size(), padded))
    group = heads // shape.num_kv_heads
    parts = max(1, -(-batch.max_context // SPLIT))
    dtype = query.dtype if parts == 1 and not wide else torch.float32
    out = torch.empty((parts, num_sequences, heads, dim), dtype=dtype, device=query.device)
    lse = torch.empty((parts, num_sequences, heads), dtype=torch.float32, device=query.device)
    arguments = {
        "out": out,
        "lse": lse,
        "query": query,
        "pages": pages.data,
        "table": batch.block_table,
        "rows": batch.rows,
        "contexts": batch.contexts,
        "limits": batch.contexts if batch.limits is None else batch.limits,
        "query_stride": query.stride(0),
        "table_stride": batch.block_table.stride(0),
        "num_sequences": num_sequences,
        **form_arguments(form, query.dtype),
        "LIMITED": batch.limits is not None,
        "GROUP": group,
        "KV_HEADS": shape.num_kv_heads,
        "DIM": dim,
        "SLOTS": shape.block_size,
        "BLOCK_G": max(tile.rows, power_of_two(group)),
        "BLOCK_D": max(16, padded),
        "BLOCK_N": tile.tokens,
        "SPLIT": SPLIT,
    }
    grid = (num_sequences, shape.num_kv_heads, parts)
    return Launch(decode_kernel, grid, arguments, tile.warps, tile.stages), out, lse
