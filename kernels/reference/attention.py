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
    view = _view(pages)
    view[blocks, 0, :, offsets] = key
    view[blocks, 1, :, offsets] = value


def paged_attention(query: torch.Tensor, pages: LayerPages, batch: AttentionBatch, form: AttentionForm) -> torch.Tensor:
    """Return `softmax(scale * Q Kᵀ + causal mask) V` sequence by sequence, in float32: `[T, H * D]`."""
    starts, contexts, rows = batch.query_starts.tolist(), batch.contexts.tolist(), batch.rows.tolist()
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for index, (row, context) in enumerate(zip(rows, contexts, strict=True)):
        chunk = slice(starts[index], starts[index + 1])
        keys, values = _gather(pages, batch.block_table[row], context)
        out[chunk] = _attend(query[chunk].float(), keys, values, form).to(out.dtype)
    return out.flatten(1)


def _view(pages: LayerPages) -> torch.Tensor:
    shape = pages.shape
    return pages.data.view(shape.num_blocks, 2, shape.num_kv_heads, shape.block_size, shape.head_dim)


def _gather(pages: LayerPages, table: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one sequence's keys and values, each `[H_kv, context, D]` float32."""
    num_blocks = -(-context // pages.shape.block_size)
    blocks = _view(pages)[table[:num_blocks].long()]  # [blocks, 2, H_kv, slots, D]
    both = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context].float()
    return both[0], both[1]


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, form: AttentionForm) -> torch.Tensor:
    """Attend `[Q, H, D]` to `[H_kv, context, D]`: `[Q, H, D]`. The queries are the context's last tokens."""
    length, heads, dim = query.shape
    kv_heads, context, _ = keys.shape
    position = torch.arange(context, device=query.device)
    own = position[context - length :, None]
    hidden = position > own  # [Q, context]
    if form.window:
        hidden |= position <= own - form.window
        oldest = max(0, context - length + 1 - form.window)  # what is before it may be stale
        keys, values, hidden = keys[:, oldest:], values[:, oldest:], hidden[:, oldest:]
    grouped = query.view(length, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)  # [H_kv, G, Q, D]
    scores = grouped @ keys.unsqueeze(1).transpose(-1, -2) * form.scale
    if form.soft_cap:
        scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return (weights @ values.unsqueeze(1)).permute(2, 0, 1, 3).reshape(length, heads, dim)
