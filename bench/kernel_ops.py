"""The linears and the memory-bound ops of `bench.kernels`."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.bandwidth import Limits, seconds_each
from bench.report import Row, medians, samples_of, take_turns
from kernels.cpu.linear import choose_linear
from kernels.errors import BackendUnavailable
from kernels.ops import Linear, Ops, select_backend
from kernels.pages import PageShape

HEADS, KV_HEADS, DIM, HIDDEN, INTERMEDIATE = 9, 3, 64, 576, 1536
# Inputs and outputs of a layer's linears: QKV, output, gate with up, down.
LAYER = (
    (HIDDEN, (HEADS + 2 * KV_HEADS) * DIM),
    (HEADS * DIM, HIDDEN),
    (HIDDEN, 2 * INTERMEDIATE),
    (INTERMEDIATE, HIDDEN),
)
LAYERS = 30  # of them 212 MB in bf16: more than any cache
FEW, MANY = (1, 8, 32), (512,)
# Other ops take their inputs from SETS places in turn, more than any cache holds; a result of this size is allocated
# without the faults of fresh memory, and so partly stays in a cache, as in a step of the engine.
TOKENS, SETS = 2048, 24
BLOCK = 16
GIGA = 1e9

Case = tuple[str, Callable[[int], object], int]  # name, call by number below SETS, bytes read and written
Result = tuple[list[Row], list[dict[str, object]]]


def linear_rows(ops: Ops, limits: Limits, repeats: int) -> Result:
    """Measure all linears of a layer, ours and oneDNN's packed ones, and ours in int8, each over 30 layers in turn."""
    rows: list[Row] = []
    samples: list[dict[str, object]] = []
    elements = sum(inputs * outputs for inputs, outputs in LAYER)
    stacks: dict[str, list[list[Linear]]] = {"ours": _stack(ops.pack_linear), "oneDNN": _stack(_packed)}
    try:
        int8 = select_backend("auto", device=ops.device, dtype=ops.dtype, weights="int8")
        stacks["int8"] = _stack(int8.pack_linear)
    except BackendUnavailable as reason:
        print(f"no int8 linears: {reason}")
    for count in FEW + MANY:
        sides = {name: partial(_layer_seconds, stack, count) for name, stack in stacks.items()}
        found = take_turns(sides, repeats=repeats)
        samples += samples_of(f"linears, {count} rows", found, "s a layer")
        seconds = dict(zip(found, medians(found), strict=True))
        for name, one in seconds.items():
            note = f"{one * LAYERS * 1e3:.2f} ms for {LAYERS} layers, {seconds['oneDNN'] / one:.2f} × oneDNN"
            case = f"linears, {name}, {count} rows"
            if count in MANY:
                value, unit, limit = 2 * count * elements / one, "Gflop/s", limits.flops
            else:
                value, unit, limit = elements * (1 if name == "int8" else 2) / one, "GB/s of weights", limits.read
            rows.append(Row(case=case, ours=value / GIGA, unit=unit, beside=limit / GIGA, note=note))
    return rows, samples


def _stack(pack: Callable[[torch.Tensor], Linear]) -> list[list[Linear]]:
    random = torch.Generator().manual_seed(0)
    return [
        [pack((torch.randn(outputs, inputs, generator=random) * 0.02).to(torch.bfloat16)) for inputs, outputs in LAYER]
        for _ in range(LAYERS)
    ]


def _packed(weight: torch.Tensor) -> Linear:
    return choose_linear(weight.dtype)(weight, None)


def _layer_seconds(stack: list[list[Linear]], count: int) -> float:
    inputs = [torch.randn(count, size).to(torch.bfloat16) for size, _ in LAYER]

    def call(number: int) -> None:
        for linear, x in zip(stack[number], inputs, strict=True):
            linear(x)

    return seconds_each(call, count=len(stack))


def memory_rows(ops: Ops, limits: Limits, repeats: int) -> Result:
    """Measure what only moves memory, in bytes read and written."""
    rows: list[Row] = []
    samples: list[dict[str, object]] = []
    for case, call, moved in (*_elementwise(ops), *_writes(ops), *_moves(ops)):
        found = take_turns({"ours": partial(_bandwidth, call, moved)}, repeats=repeats)
        samples += samples_of(case, found, "GB/s")
        rows.append(Row(case=case, ours=medians(found)[0], unit="GB/s", beside=limits.copy / GIGA))
    return rows, samples


def _bandwidth(call: Callable[[int], object], moved: int) -> float:
    return moved / seconds_each(call, count=SETS) / GIGA


def _random(ops: Ops, *shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape).to(ops.dtype) for _ in range(SETS)]


def _elementwise(ops: Ops) -> Iterator[Case]:
    """Yield norms and gates."""
    hidden, residual, weight = _random(ops, TOKENS, HIDDEN), _random(ops, TOKENS, HIDDEN), _random(ops, HIDDEN)[0]
    size = hidden[0].nbytes
    yield "rms_norm", lambda n: ops.rms_norm(hidden[n], weight, eps=1e-5), 2 * size
    yield "rms_norm + residual", lambda n: ops.rms_norm(hidden[n], weight, eps=1e-5, residual=residual[n]), 4 * size
    gate_up = _random(ops, TOKENS, 2 * INTERMEDIATE)
    size = gate_up[0].nbytes * 3 // 2
    yield "silu_mul", lambda n: ops.silu_mul(gate_up[n]), size
    yield "gelu_mul", lambda n: ops.gelu_mul(gate_up[n]), size


def _writes(ops: Ops) -> Iterator[Case]:
    """Yield the turning of heads and the writing of pages, to whole blocks anywhere."""
    blocks = SETS * TOKENS // BLOCK
    shape = PageShape(num_layers=1, num_blocks=blocks, block_size=BLOCK, num_kv_heads=KV_HEADS, head_dim=DIM)
    pages = ops.empty_pages(shape)
    pages.data.zero_()
    layer = pages.layers[0]
    heads = _random(ops, TOKENS, HEADS + 2 * KV_HEADS, DIM)
    positions = torch.arange(TOKENS, dtype=torch.int32)
    angles = torch.rand(TOKENS, DIM // 2)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    slots = (torch.randperm(blocks)[:, None] * BLOCK + torch.arange(BLOCK)).view(SETS, TOKENS).unbind()
    turned, token = HEADS + KV_HEADS, 2 * DIM * ops.dtype.itemsize  # of one head, read and written
    yield "rope", lambda n: ops.rope(heads[n][:, :turned], table, positions), TOKENS * turned * token

    def write(number: int) -> None:
        ops.kv_write(heads[number][:, HEADS:turned], heads[number][:, turned:], layer, slots[number])

    yield "kv_write", write, TOKENS * 2 * KV_HEADS * token
    every = TOKENS * (HEADS + 2 * KV_HEADS) * token
    yield "rope_kv_write", lambda n: ops.rope_kv_write(heads[n], table, positions, layer, slots[n]), every


def _moves(ops: Ops) -> Iterator[Case]:
    """Yield the moving of whole blocks, 40 at once, over all layers."""
    count = 40
    shape = PageShape(
        num_layers=LAYERS, num_blocks=2 * SETS * count, block_size=BLOCK, num_kv_heads=KV_HEADS, head_dim=DIM
    )
    pool = ops.empty_pages(shape)
    pool.data.zero_()
    some, others = torch.randperm(shape.num_blocks).view(2, SETS, count).unbind()
    slabs = ops.gather_blocks(pool, some[0])
    yield "gather_blocks", lambda n: ops.gather_blocks(pool, some[n]), 2 * slabs.nbytes
    yield "scatter_blocks", lambda n: ops.scatter_blocks(slabs, pool, some[n]), 2 * slabs.nbytes
    yield "copy_blocks", lambda n: ops.copy_blocks(pool, some[n], others[n]), 2 * slabs.nbytes
