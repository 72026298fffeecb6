"""Join attention over parts of one context: outputs weighted by the exponentials of their log-sum-exp.

    out = Σ exp(lse_p - max lse) * out_p / Σ exp(lse_p - max lse)

Source: FlashInfer (arXiv 2501.01005), section 2.2.
"""

import torch
import triton
import triton.language as tl

from kernels.triton_ops.launch import Launch, power_of_two


@triton.jit(do_not_specialize=["num_parts", "num_rows"])
def merge_kernel(out, parts, lse, num_parts, num_rows, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write row `r` of `out` `[R, D]` from `parts` `[P, R, D]` and `lse` `[P, R]`; a part of -inf is not read."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    top = float("-inf")
    for part in range(num_parts):
        top = tl.maximum(top, tl.load(lse + part * num_rows + row))
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for part in range(num_parts):
        at = part * num_rows + row
        score = tl.load(lse + at)
        weight = tl.exp(score - top)  # NaN stays NaN, in `total`: a stale slot must show
        read = tl.where(score > float("-inf"), DIM, 0)
        acc += weight * tl.load(parts + at * DIM + dims, mask=dims < read, other=0.0).to(tl.float32)
        total += weight
    tl.store(out + row * DIM + dims, (acc / total).to(out.dtype.element_ty), mask=dims < DIM)


def merge_launch(parts: torch.Tensor, lse: torch.Tensor, dtype: torch.dtype) -> tuple[Launch, torch.Tensor]:
    """Prepare the join of `parts` `[P, T, H, D]` with `lse` `[P, T, H]`: `[T, H, D]` of `dtype`."""
    num_parts, tokens, heads, dim = parts.shape
    out = torch.empty((tokens, heads, dim), dtype=dtype, device=parts.device)
    arguments = {
        "out": out,
        "parts": parts,
        "lse": lse,
        "num_parts": num_parts,
        "num_rows": tokens * heads,
        "DIM": dim,
        "BLOCK_D": power_of_two(dim),
    }
    return Launch(merge_kernel, (tokens * heads,), arguments, num_warps=1), out
