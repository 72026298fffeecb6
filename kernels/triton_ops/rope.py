"""`rope`: rotate heads in place, first half against second half, as in Llama. Source: RoFormer (arXiv 2104.09864)."""

import torch
import triton
import triton.language as tl

from kernels.triton_ops.launch import Launch, power_of_two


@triton.jit
def load_angles(table, position, lanes, mask, HALF: tl.constexpr):
    """Return the cosines and sines of a position; a row of `table` has all cosines, then all sines."""
    row = table + position.to(tl.int64) * (2 * HALF)
    return tl.load(row + lanes, mask=mask, other=0.0), tl.load(row + HALF + lanes, mask=mask, other=0.0)


@triton.jit
def rope_kernel(
    heads, table, positions, stride,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_H heads of one token."""
    token = tl.program_id(0)
    members = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    lanes = tl.arange(0, BLOCK_D)
    cos, sin = load_angles(table, tl.load(positions + token), lanes, lanes < HALF, HALF)
    at = heads + token.to(tl.int64) * stride + members[:, None] * (2 * HALF) + lanes[None, :]
    mask = (members < HEADS)[:, None] & (lanes < HALF)[None, :]
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    kind = heads.dtype.element_ty
    tl.store(at, (first * cos[None, :] - second * sin[None, :]).to(kind), mask=mask)
    tl.store(at + HALF, (second * cos[None, :] + first * sin[None, :]).to(kind), mask=mask)


def rope_launch(heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> Launch:
    """Prepare the rotation of `heads` `[T, H, D]` by `table` `[max_positions, D]` float32."""
    tokens, num_heads, dim = heads.shape
    block = min(power_of_two(num_heads), 8)
    arguments = {
        "heads": heads,
        "table": table,
        "positions": positions,
        "stride": heads.stride(0),
        "HEADS": num_heads,
        "HALF": dim // 2,
        "BLOCK_H": block,
        "BLOCK_D": power_of_two(dim // 2),
    }
    return Launch(rope_kernel, (tokens, -(-num_heads // block)), arguments, num_warps=1 if block * dim <= 512 else 4)
