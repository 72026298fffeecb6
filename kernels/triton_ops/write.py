"""`kv_write`, and `rope_kv_write`: one pass that rotates queries and keys and stores keys and values.

A page lies `[block, K or V, head, slot, D]`. Fused, a step saves a launch a layer and the keys' way to memory and back.
"""

import torch
import triton
import triton.language as tl

from kernels.pages import LayerPages
from kernels.triton_ops.launch import Launch, power_of_two
from kernels.triton_ops.rope import load_angles


@triton.jit
def page_of(pages, slot, head, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, DIM: tl.constexpr):
    """Return where a slot's key of a head begins; its value is KV_HEADS * SLOTS * DIM further."""
    block, offset = slot // SLOTS, slot % SLOTS
    return pages + (block * (2 * KV_HEADS) + head) * (SLOTS * DIM) + offset * DIM


@triton.jit
def kv_write_kernel(
    key, value, pages, slots, key_stride, value_stride,
    KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Store one token's keys and values; slot -1 stores nothing."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        heads, dims = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
        mask = (heads < KV_HEADS)[:, None] & (dims < DIM)[None, :]
        source = heads[:, None] * DIM + dims[None, :]
        target = page_of(pages, slot, heads, KV_HEADS, SLOTS, DIM)[:, None] + dims[None, :]
        tl.store(target, tl.load(key + token * key_stride + source, mask=mask), mask=mask)
        further = KV_HEADS * SLOTS * DIM
        tl.store(target + further, tl.load(value + token * value_stride + source, mask=mask), mask=mask)


@triton.jit
def rope_kv_write_kernel(
    heads, table, positions, pages, slots, stride,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Take BLOCK_H of one token's heads: queries turn in place, keys on their way to the page, values are copied."""
    token = tl.program_id(0).to(tl.int64)
    members, lanes = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    slot = tl.load(slots + token)
    cos, sin = load_angles(table, tl.load(positions + token), lanes, lanes < HALF, HALF)
    kind = heads.dtype.element_ty
    inside = (lanes < HALF)[None, :]
    real = (members < QUERY_HEADS + 2 * KV_HEADS)[:, None] & inside
    at = heads + token * stride + members[:, None] * (2 * HALF) + lanes[None, :]
    first = tl.load(at, mask=real, other=0.0)
    second = tl.load(at + HALF, mask=real, other=0.0)
    a, b = first.to(tl.float32), second.to(tl.float32)
    turned_first = (a * cos[None, :] - b * sin[None, :]).to(kind)
    turned_second = (b * cos[None, :] + a * sin[None, :]).to(kind)
    is_query = (members < QUERY_HEADS)[:, None] & inside
    tl.store(at, turned_first, mask=is_query)
    tl.store(at + HALF, turned_second, mask=is_query)

    is_value = members >= QUERY_HEADS + KV_HEADS
    head = members - QUERY_HEADS - tl.where(is_value, KV_HEADS, 0)
    target = page_of(pages, slot, head, KV_HEADS, SLOTS, 2 * HALF)
    target = (target + tl.where(is_value, KV_HEADS * SLOTS * 2 * HALF, 0))[:, None] + lanes[None, :]
    stored = real & (members >= QUERY_HEADS)[:, None] & (slot >= 0)
    tl.store(target, tl.where(is_value[:, None], first, turned_first), mask=stored)
    tl.store(target + HALF, tl.where(is_value[:, None], second, turned_second), mask=stored)


def kv_write_launch(key: torch.Tensor, value: torch.Tensor, pages: LayerPages, slots: torch.Tensor) -> Launch:
    """Prepare the store of `key` and `value` `[T, H_kv, D]` in `slots` `[T]`."""
    tokens, kv_heads, dim = key.shape
    arguments = {
        "key": key,
        "value": value,
        "pages": pages.data,
        "slots": slots,
        "key_stride": key.stride(0),
        "value_stride": value.stride(0),
        "KV_HEADS": kv_heads,
        "SLOTS": pages.shape.block_size,
        "DIM": dim,
        "BLOCK_H": power_of_two(kv_heads),
        "BLOCK_D": power_of_two(dim),
    }
    return Launch(kv_write_kernel, (tokens,), arguments, num_warps=1 if kv_heads * dim <= 512 else 4)


def rope_kv_write_launch(
    heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, pages: LayerPages, slots: torch.Tensor
) -> Launch:
    """Prepare the fused pass over `heads` `[T, H + 2 * H_kv, D]`: queries, keys, values."""
    tokens, fused, dim = heads.shape
    kv_heads = pages.shape.num_kv_heads
    block = min(power_of_two(fused), 8)
    arguments = {
        "heads": heads,
        "table": table,
        "positions": positions,
        "pages": pages.data,
        "slots": slots,
        "stride": heads.stride(0),
        "QUERY_HEADS": fused - 2 * kv_heads,
        "KV_HEADS": kv_heads,
        "SLOTS": pages.shape.block_size,
        "HALF": dim // 2,
        "BLOCK_H": block,
        "BLOCK_D": power_of_two(dim // 2),
    }
    grid = (tokens, -(-fused // block))
    return Launch(rope_kv_write_kernel, grid, arguments, num_warps=1 if block * dim <= 512 else 4)
