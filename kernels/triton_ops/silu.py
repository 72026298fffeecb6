"""`silu_mul` and `gelu_mul`: silu(gate) * up, gelu(gate) * up. Source: arXiv 2002.05202."""

import torch
import triton
import triton.language as tl

from kernels.triton_ops.launch import Launch, power_of_two


@triton.jit
def gated_kernel(out, gate_up, WIDTH: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """Take BLOCK elements of one row. The tanh formula of gelu is a sigmoid of twice its argument."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < WIDTH
    gate = tl.load(gate_up + row * (2 * WIDTH) + lanes, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * WIDTH) + WIDTH + lanes, mask=mask, other=0.0).to(tl.float32)
    turn = gate
    if GELU:
        turn = gate * (1.5957691216057308 + 0.07135481627159959 * gate * gate)
    tl.store(out + row * WIDTH + lanes, (gate / (1.0 + tl.exp(-turn)) * up).to(out.dtype.element_ty), mask=mask)


def silu_mul_launch(gate_up: torch.Tensor) -> tuple[Launch, torch.Tensor]:
    """Prepare the product of `gate_up` `[T, 2 * I]`, contiguous: `[T, I]`."""
    return _launch(gate_up, gelu=False)


def gelu_mul_launch(gate_up: torch.Tensor) -> tuple[Launch, torch.Tensor]:
    """Prepare the product of `gate_up` `[T, 2 * I]`, contiguous: `[T, I]`."""
    return _launch(gate_up, gelu=True)


def _launch(gate_up: torch.Tensor, *, gelu: bool) -> tuple[Launch, torch.Tensor]:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    block = min(power_of_two(width), 1024)
    arguments = {"out": out, "gate_up": gate_up, "WIDTH": width, "GELU": gelu, "BLOCK": block}
    return Launch(gated_kernel, (rows, -(-width // block)), arguments), out
