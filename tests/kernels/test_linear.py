"""Packed linears of every backend: full weights and int8, against float64; a row never depends on its batch mates."""

import pytest
import torch

from kernels.cpu.build import library
from kernels.cpu.library import Level, Library
from kernels.cpu.ops import CpuOps
from kernels.cpu.panels import PanelLinear
from kernels.errors import BackendUnavailable
from kernels.ops import Linear, Ops, select_backend
from kernels.quantised import quantise
from kernels.reference.ops import ReferenceOps
from tests.kernels.cases import assert_close
from tests.kernels.conftest import CPU

ROWS = [0, 1, 2, 3, 5, 8, 9, 12, 13, 40, 192, 401]


@pytest.fixture
def int8_ops(ops: Ops) -> Ops:
    """The same backend over int8 weights."""
    if isinstance(ops, CpuOps):
        return CpuOps.load(CPU, ops.dtype, Level[ops.instructions.upper()], weights="int8")
    return ReferenceOps(CPU, ops.dtype, weights="int8")


def normal(*shape: int, ops: Ops, seed: int = 0) -> torch.Tensor:
    """Return normal numbers, the same for the same arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(ops.dtype)


def check(ops: Ops, linear: Linear, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Compare products of many sizes with float64 over `weight`."""
    for rows in ROWS:
        x = normal(rows, weight.shape[1], ops=ops, seed=rows)
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        assert_close(linear(x), exact)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (33, 70), (576, 192), (700, 31), (4200, 40)])
def test_full_weights(ops: Ops, inputs: int, outputs: int, bias: bool) -> None:
    """Inputs and outputs of any number, more than a stretch holds among them, are multiplied in tiles of any size."""
    weight = normal(outputs, inputs, ops=ops, seed=1) / inputs**0.5
    shift = normal(outputs, ops=ops, seed=2) if bias else None
    check(ops, ops.pack_linear(weight, shift), weight, shift)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (33, 70), (576, 192), (700, 31), (4200, 40)])
def test_int8_weights(int8_ops: Ops, inputs: int, outputs: int, bias: bool) -> None:
    """Weights in eight bits give the product with what they stand for; nothing else is rounded on the way."""
    weight = normal(outputs, inputs, ops=int8_ops, seed=1) / inputs**0.5
    weight[:, 0] *= 5.0  # an outlier in each row: its scale is coarse
    shift = normal(outputs, ops=int8_ops, seed=2) if bias else None
    values, scale = quantise(weight)
    check(int8_ops, int8_ops.pack_linear(weight, shift), values.double() * scale.double()[:, None], shift)


def test_every_eight_bit_value(int8_ops: Ops) -> None:
    """Each of the values -127 to 127 is exactly itself at each place in a panel."""
    weight = torch.arange(-127, 128).repeat(64)[: 64 * 254].view(64, 254).to(int8_ops.dtype)
    weight[:, 0] = 127.0
    linear = int8_ops.pack_linear(weight)
    for rows in (1, 254):
        assert torch.equal(linear(torch.eye(254).to(int8_ops.dtype)[:rows]), weight.T[:rows])


def test_quantised_rows() -> None:
    """A scale comes from its row's largest weight alone; a row of zeros stays zero."""
    weight = torch.tensor([[1.0, -2.54, 0.51], [0.0, 0.0, 0.0]])
    values, scale = quantise(weight)
    assert values.tolist() == [[50, -127, 26], [0, 0, 0]]
    torch.testing.assert_close(values * scale[:, None], weight, atol=0.01, rtol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_not_finite_shows(int8_ops: Ops, value: float) -> None:
    """An output whose weights hold a NaN or an infinity is not finite, and no other is touched."""
    weight = normal(40, 65, ops=int8_ops)
    weight[3, 7] = value
    for rows in (1, 13):
        found = int8_ops.pack_linear(weight)(normal(rows, 65, ops=int8_ops, seed=1)).isfinite()
        assert found.sum(1).tolist() == [39] * rows and not found[:, 3].any()


def test_rows_ignore_batch_mates(ops: Ops, int8_ops: Ops) -> None:
    """A row's result is the same to the bit alone, in a batch of any size and beside a NaN."""
    weight = normal(100, 4200, ops=ops)
    for linear in (ops.pack_linear(weight), int8_ops.pack_linear(weight)):
        if not isinstance(linear, PanelLinear):
            continue  # oneDNN promises no such thing
        x = normal(401, 4200, ops=ops, seed=1)
        x[7] = float("nan")
        together = linear(x)
        assert together[7].isnan().all()
        for rows in (1, 7, 8, 9, 192, 400):
            alone = linear(x[:rows])
            assert torch.equal(alone.nan_to_num(9.0), together[:rows].nan_to_num(9.0))


def test_strided_rows(int8_ops: Ops) -> None:
    """Rows may lie apart, with NaN between them."""
    weight, wide = normal(40, 65, ops=int8_ops), normal(9, 130, ops=int8_ops, seed=1)
    wide[:, 65:] = float("nan")
    linear = int8_ops.pack_linear(weight)
    assert torch.equal(linear(wide[:, :65]), linear(wide[:, :65].contiguous()))


def test_panels_serve_where_they_are_measured_best() -> None:
    """On a CPU with the bfloat16 dot product and no AMX, full weights are in our panels; in int8 always."""
    best = Library(library()).best_level
    linear = CpuOps.load(CPU, torch.bfloat16).pack_linear(torch.ones(32, 32))
    measured = best is Level.AVX512_BF16 and not torch.cpu._is_amx_tile_supported()
    assert isinstance(linear, PanelLinear) is measured
    small = CpuOps.load(CPU, torch.bfloat16, weights="int8").pack_linear(torch.ones(320, 320))
    assert isinstance(small, PanelLinear)
    assert small.nbytes == 320 * 320 + 320 * 4


@pytest.mark.parametrize("name", ["triton", "auto"])
def test_int8_on_a_gpu_is_refused(name: str) -> None:
    """Another device than the CPU has no int8 weights, and says so rather than serve others."""
    with pytest.raises(BackendUnavailable, match="int8 weights are computed on the CPU alone"):
        select_backend(name, device=torch.device("cuda"), dtype=torch.bfloat16, weights="int8")  # type: ignore[arg-type]
