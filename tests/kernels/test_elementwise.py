"""Norms, rotary positions, activations and linears against float64."""

import pytest
import torch

from kernels.ops import Ops
from tests.kernels.cases import assert_close

WIDTHS = [1, 15, 16, 17, 576, 1000]


def normal(*shape: int, ops: Ops, seed: int = 0) -> torch.Tensor:
    """Return normal numbers, the same for the same arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(ops.device, ops.dtype)


def exact_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the norm in float64."""
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 77])
def test_rms_norm(ops: Ops, width: int, rows: int) -> None:
    """Rows of any width are normalised and scaled."""
    x, weight = normal(rows, width, ops=ops), normal(width, ops=ops, seed=1)
    assert_close(ops.rms_norm(x, weight, eps=1e-5), exact_norm(x, weight))


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_adds_the_residual_first(ops: Ops, width: int) -> None:
    """The residual becomes the sum, in place, and the sum is what is normalised."""
    x, residual, weight = normal(5, width, ops=ops), normal(5, width, ops=ops, seed=1), normal(width, ops=ops, seed=2)
    total = residual + x
    out = ops.rms_norm(x, weight, eps=1e-5, residual=residual)
    assert torch.equal(residual, total)
    assert_close(out, exact_norm(total, weight))


def test_rms_norm_of_strided_heads(ops: Ops) -> None:
    """Heads inside a fused QKV are normalised each on its own."""
    qkv, weight = normal(6, 8, 64, ops=ops), normal(64, ops=ops, seed=1)
    assert_close(ops.rms_norm(qkv[:, 2:5], weight, eps=1e-5), exact_norm(qkv[:, 2:5], weight))


@pytest.mark.parametrize("dim", [2, 16, 40, 64, 80, 128])
def test_rope(ops: Ops, dim: int) -> None:
    """Each half pair turns by its position's angle; heads outside the view stay."""
    heads = normal(9, 5, dim, ops=ops)
    angles = torch.rand(40, dim // 2, dtype=torch.float64) * 6
    table = torch.cat((angles.cos(), angles.sin()), -1).float()
    positions = torch.tensor([0, 3, 39, 1, 1, 2, 20, 7, 8], dtype=torch.int32)
    first, second = heads[:, :3].double().chunk(2, -1)
    cos, sin = table.double()[positions.long()].unsqueeze(1).chunk(2, -1)
    exact = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    rest = heads[:, 3:].clone()
    ops.rope(heads[:, :3], table, positions)
    assert_close(heads[:, :3], exact)
    assert torch.equal(heads[:, 3:], rest)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 33])
def test_silu_mul(ops: Ops, width: int, rows: int) -> None:
    """The gate passes through silu, large negative ones included, and scales up."""
    gate_up = normal(rows, 2 * width, ops=ops) * 3
    gate_up[:, :1] = -200.0
    gate, up = gate_up.double().chunk(2, -1)
    assert_close(ops.silu_mul(gate_up), gate * gate.sigmoid() * up)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 33])
def test_gelu_mul(ops: Ops, width: int, rows: int) -> None:
    """The gate passes through gelu's tanh formula, large ones of both signs included, and scales up."""
    gate_up = normal(rows, 2 * width, ops=ops) * 3
    gate_up[:, :1] = -200.0
    gate_up[:, 1:2] = 200.0
    gate, up = gate_up.double().chunk(2, -1)
    exact = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))) * up
    assert_close(ops.gelu_mul(gate_up), exact)


@pytest.mark.parametrize("rows", [0, 1, 3, 8, 65])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 192), (33, 70)])
def test_linear(ops: Ops, rows: int, bias: bool, inputs: int, outputs: int) -> None:
    """A packed linear multiplies and adds its bias, for no row, one and many."""
    weight = normal(outputs, inputs, ops=ops) / inputs**0.5
    shift = normal(outputs, ops=ops, seed=2) if bias else None
    x = normal(rows, inputs, ops=ops, seed=1)
    exact = x.double() @ weight.double().T + (shift.double() if shift is not None else 0)
    linear = ops.pack_linear(weight, shift)
    assert linear.out_features == outputs
    assert_close(linear(x), exact)


def test_bfloat16_rounding_keeps_nan(ops: Ops) -> None:
    """A NaN with every bit set stays one on its way through a kernel."""
    gate_up = torch.ones(1, 64).to(ops.dtype)
    integer = torch.int16 if ops.dtype == torch.bfloat16 else torch.int32
    gate_up.view(integer)[0, 3] = -1
    out = ops.silu_mul(gate_up)
    assert out[0, 3].isnan() and not out[0, :3].isnan().any()
