"""`rms_norm`: x / sqrt(mean(x²) + eps) * weight, the residual added first if there is one. Source: arXiv 1910.07467."""

import torch
import triton
import triton.language as tl

from kernels.triton_ops.launch import Launch, power_of_two


@triton.jit
def rms_norm_kernel(
    out, x, residual, weight, stride, eps,
    INNER: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Normalise one row; rows of `x` are INNER to a token, tokens `stride` elements apart."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    mask = dims < DIM
    value = tl.load(x + row // INNER * stride + row % INNER * DIM + dims, mask=mask, other=0.0).to(tl.float32)
    if ADDED:
        value += tl.load(residual + row * DIM + dims, mask=mask, other=0.0).to(tl.float32)
        kept = value.to(residual.dtype.element_ty)
        tl.store(residual + row * DIM + dims, kept, mask=mask)
        value = kept.to(tl.float32)  # what the next layer will read
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / DIM + eps)
    normal = value * scale * tl.load(weight + dims, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * DIM + dims, normal.to(out.dtype.element_ty), mask=mask)


def rms_norm_launch(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> tuple[Launch, torch.Tensor]:
    """Prepare the norm of `x` `[T, D]`, or `[T, H, D]` with strided tokens and no residual."""
    dim, inner = x.shape[-1], x.shape[1] if x.dim() == 3 else 1
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = power_of_two(dim)
    arguments = {
        "out": out,
        "x": x,
        "residual": out if residual is None else residual,
        "weight": weight,
        "stride": x.stride(0),
        "eps": eps,
        "INNER": inner,
        "DIM": dim,
        "BLOCK_D": block,
        "ADDED": residual is not None,
    }
    return Launch(rms_norm_kernel, (x.shape[0] * inner,), arguments, num_warps=min(16, max(1, block // 256))), out
