"""`silu_mul`: silu(gate) * up. Source: arXiv 2002.05202."""

import torch
import triton
import triton.language as tl

from kernels.triton_ops.launch import Launch, power_of_two


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Take BLOCK elements of one row."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < WIDTH
    gate = tl.load(gate_up + row * (2 * WIDTH) + lanes, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * WIDTH) + WIDTH + lanes, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + lanes, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=mask)


def silu_mul_launch(gate_up: torch.Tensor) -> tuple[Launch, torch.Tensor]:
    """Prepare the product of `gate_up` `[T, 2 * I]`, contiguous: `[T, I]`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    block = min(power_of_two(width), 1024)
    arguments = {"out": out, "gate_up": gate_up, "WIDTH": width, "BLOCK": block}
    return Launch(silu_mul_kernel, (rows, -(-width // block)), arguments), out
