"""Layers run in one call equal layers composed of the ops, to the bit."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from kernels.batch import AttentionBatch, AttentionForm
from kernels.cpu.layers import CpuLayers
from kernels.cpu.library import Level
from kernels.cpu.ops import CpuOps
from kernels.layers import ComposedLayers, Layer
from kernels.ops import Linear, Ops
from kernels.pages import PageShape
from tests.kernels.conftest import CPU

HEADS, KV_HEADS, DIM, HIDDEN, WIDE, BLOCK = 6, 2, 32, 96, 160, 16
SEQUENCES = [(1, 1), (1, 40), (1, 300), (7, 7), (50, 90)]  # tokens of the step, context


@pytest.fixture
def int8_ops(ops: Ops) -> Ops:
    """The backend over int8 weights, which are in panels at every level; the reference as it is."""
    if isinstance(ops, CpuOps):
        return CpuOps.load(CPU, ops.dtype, Level[ops.instructions.upper()], weights="int8")
    return ops


def normal(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return normal numbers, the same for the same arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_layer(ops: Ops, seed: int, *, full: bool, activation: Literal["silu", "gelu"] = "silu") -> Layer:
    """Return a random layer; `full`: with every norm and bias that a layer may have, and a window."""

    def linear(outputs: int, inputs: int, number: int) -> Linear:
        weight = normal(outputs, inputs, dtype=ops.dtype, seed=seed + number) / inputs**0.5
        return ops.pack_linear(weight, normal(outputs, dtype=ops.dtype, seed=seed + 9) if full else None)

    def norm(width: int, number: int) -> torch.Tensor:
        return normal(width, dtype=ops.dtype, seed=seed + number)

    angles = torch.arange(512)[:, None] / 10.0 ** torch.arange(DIM // 2)
    return Layer(
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        norm_eps=1e-5,
        activation=activation,
        form=AttentionForm(DIM**-0.5, 33 if full else 0, 20.0 if full else 0.0),
        table=torch.cat((angles.cos(), angles.sin()), -1),
        qkv=linear((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, 1),
        query_norm=norm(DIM, 2) if full else None,
        key_norm=norm(DIM, 3) if full else None,
        output=linear(HIDDEN, HEADS * DIM, 4),
        attention_post_norm=norm(HIDDEN, 5) if full else None,
        mlp_norm=norm(HIDDEN, 6),
        gate_up=linear(2 * WIDE, HIDDEN, 7),
        down=linear(HIDDEN, WIDE, 8),
        mlp_post_norm=norm(HIDDEN, 10) if full else None,
        next_norm=norm(HIDDEN, 11),
    )


def make_batch() -> AttentionBatch:
    """Return decodes and chunks over shuffled blocks."""
    lengths = torch.tensor([length for length, _ in SEQUENCES])
    contexts = torch.tensor([context for _, context in SEQUENCES])
    table = torch.randperm(100, generator=torch.Generator().manual_seed(3))[: 20 * 5].view(5, 20).to(torch.int32)
    positions = torch.cat([torch.arange(context - length, context) for length, context in SEQUENCES])
    rows = torch.arange(5).repeat_interleave(lengths)
    slots = table[rows, positions // BLOCK].long() * BLOCK + positions % BLOCK
    return AttentionBatch(
        positions=positions.to(torch.int32),
        slots=slots,
        query_starts=torch.cat((torch.zeros(1), lengths.cumsum(0))).to(torch.int32),
        contexts=contexts.to(torch.int32),
        rows=torch.arange(5, dtype=torch.int32),
        block_table=table,
        max_query=int(lengths.max()),
        max_context=int(contexts.max()),
        num_decodes=3,
    )


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_one_call_equals_the_ops(int8_ops: Ops, full: bool, activation: Literal["silu", "gelu"]) -> None:
    """Decodes and chunks through several layers, some without positions: hidden, residual and pages are equal."""
    ops, batch = int8_ops, make_batch()
    layers = [make_layer(ops, 20 * index, full=full, activation=activation) for index in range(3)]
    layers[1] = replace(layers[1], table=None)
    stack = ops.pack_layers(layers)
    assert isinstance(stack, CpuLayers if isinstance(ops, CpuOps) else ComposedLayers)
    shape = PageShape(num_layers=3, num_blocks=100, block_size=BLOCK, num_kv_heads=KV_HEADS, head_dim=DIM)
    tokens = len(batch.positions)
    results = []
    for run in (stack, ComposedLayers(ops, layers)):
        pages = ops.empty_pages(shape)
        pages.data.copy_(normal(*pages.data.shape, dtype=ops.dtype, seed=1))
        hidden, residual = (normal(tokens, HIDDEN, dtype=ops.dtype, seed=seed) for seed in (4, 5))
        hidden = run(hidden, residual, pages, batch)
        results.append((hidden, residual, pages.data))
    assert not results[0][0].isnan().any()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_an_empty_step(int8_ops: Ops) -> None:
    """A step without tokens changes nothing."""
    layers = [make_layer(int8_ops, 0, full=False)]
    shape = PageShape(num_layers=1, num_blocks=2, block_size=BLOCK, num_kv_heads=KV_HEADS, head_dim=DIM)
    pages = int8_ops.empty_pages(shape)
    pages.data.zero_()
    nothing = torch.zeros(0, dtype=torch.int32)
    batch = AttentionBatch(
        positions=nothing,
        slots=nothing.long(),
        query_starts=torch.zeros(1, dtype=torch.int32),
        contexts=nothing,
        rows=nothing,
        block_table=torch.zeros(1, 2, dtype=torch.int32),
        max_query=0,
        max_context=0,
    )
    hidden = torch.empty(0, HIDDEN, dtype=int8_ops.dtype)
    assert int8_ops.pack_layers(layers)(hidden, hidden.clone(), pages, batch).shape == (0, HIDDEN)
    assert not pages.data.any()
