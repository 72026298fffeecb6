"""Paged attention and the page format `[block, K or V, head, slot, D]` of the reference."""

import torch

from kernels.batch import AttentionBatch, AttentionForm
from kernels.pages import LayerPages


def kv_write(key: torch.Tensor, value: torch.Tensor, pages: LayerPages, slots: torch.Tensor) -> None:
    """Store keys and values `[T, H_kv, D]` in their slots; slot -1 stores nothing."""
    kept = slots >= 0
    if not bool(kept.all()):
        key, value, slots = key[kept], value[kept], slots[kept]
    blocks, offsets = slots // pages.shape.block_size, slots % pages.shape.block_size
    view = _view(pages, pages.data)
    view[blocks, 0, :, offsets] = key
    view[blocks, 1, :, offsets] = value


def paged_attention(query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm) -> torch.Tensor:
    """Return `softmax(scale * Q Kᵀ + causal mask) V` sequence by sequence, in float32: `[T, H * D]`."""
    return partial_attention(query, pages, batch, form)[0].to(query.dtype).flatten(1)


def partial_attention(
    query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same in float32, `[T, H, D]`, of what is there, and the log-sum-exp of scores `[T, H]`."""
    starts, contexts = batch.query_starts.tolist(), batch.contexts.tolist()
    limits = contexts if batch.limits is None else batch.limits.tolist()
    out = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    for index, (context, limit) in enumerate(zip(contexts, limits, strict=True)):
        chunk = slice(starts[index], starts[index + 1])
        keys, values = _gather(pages, batch, index, min(context, limit))
        out[chunk], lse[chunk] = _attend(query[chunk].float(), keys, values, form, context)
    return out, lse


def _view(pages: LayerPages, data: torch.Tensor) -> torch.Tensor:
    shape = pages.shape
    return data.view(-1, 2, shape.num_kv_heads, shape.block_size, shape.head_dim)


def _gather(pages: LayerPages, batch: AttentionBatch, index: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one sequence's keys and values, each `[H_kv, context, D]` float32."""
    size = pages.shape.block_size
    num_blocks, table, away = -(-context // size), batch.block_table[batch.rows[index]], 0
    if batch.hosted is not None:
        away = min(int(batch.hosted.tokens[index]) // size, num_blocks)
    blocks = _view(pages, pages.data)[table[away:num_blocks].long()]  # [blocks, 2, H_kv, slots, D]
    if away and batch.hosted is not None:
        slabs = batch.hosted.slabs[batch.hosted.table[index, :away].long(), pages.layer]
        blocks = torch.cat((_view(pages, slabs), blocks))
    both = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context].float()
    return both[0], both[1]


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, form: AttentionForm, context: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend `[Q, H, D]` to `[H_kv, K, D]`: `[Q, H, D]`, and log-sum-exp `[Q, H]`; where nothing is seen 0 and -inf.

    The queries are the last tokens of `context`, the keys its first.
    """
    length, heads, dim = query.shape
    kv_heads = keys.shape[0]
    position = torch.arange(keys.shape[1], device=query.device)
    own = torch.arange(context - length, context, device=query.device)[:, None]
    hidden = position > own  # [Q, context]
    if form.window:
        hidden |= position <= own - form.window
        oldest = max(0, context - length + 1 - form.window)  # what is before it may be stale
        keys, values, hidden = keys[:, oldest:], values[:, oldest:], hidden[:, oldest:]
    grouped = query.view(length, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)  # [H_kv, G, Q, D]
    scores = grouped @ keys.unsqueeze(1).transpose(-1, -2) * form.scale
    if form.soft_cap:
        scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
    scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], float("-inf"))
    weights = scores.softmax(-1).masked_fill((lse == float("-inf")).unsqueeze(-1), 0.0)
    out = (weights @ values.unsqueeze(1)).permute(2, 0, 1, 3).reshape(length, heads, dim)
    return out, lse.permute(2, 0, 1).reshape(length, heads)
