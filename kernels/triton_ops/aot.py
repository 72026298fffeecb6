"""Compile every kernel for GPUs that are not there, and read what it costs from the binary.

    python -m kernels.triton_ops.aot [--json]

Prints a table of registers, spilled bytes, shared memory and KV buffers in flight for the shapes of `cases`. Not under
`TRITON_INTERPRET=1`, which leaves nothing to compile.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.batch import AttentionBatch, AttentionForm
from kernels.pages import Pages, PageShape
from kernels.triton_ops.blocks import copy_launch, gather_launch, scatter_launch
from kernels.triton_ops.decode import decode_launch
from kernels.triton_ops.launch import Launch
from kernels.triton_ops.mask import mask_launch
from kernels.triton_ops.merge import merge_launch
from kernels.triton_ops.norm import rms_norm_launch
from kernels.triton_ops.prefill import prefill_launch
from kernels.triton_ops.rope import rope_launch
from kernels.triton_ops.sample import sample_launch
from kernels.triton_ops.silu import gelu_mul_launch, silu_mul_launch
from kernels.triton_ops.write import kv_write_launch, rope_kv_write_launch

CAPABILITIES = (80, 90)
_META = torch.device("meta")
_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a model, as kernels see it."""

    name: str
    query_heads: int
    kv_heads: int
    dim: int
    hidden: int
    intermediate: int
    vocab: int
    window: int = 0
    soft_cap: float = 0.0


SHAPES = (
    Shape(name="SmolLM2-135M", query_heads=9, kv_heads=3, dim=64, hidden=576, intermediate=1536, vocab=49152),
    Shape(name="Phi-2", query_heads=32, kv_heads=32, dim=80, hidden=2560, intermediate=10240, vocab=51200),
    Shape(name="Phi-3-mini", query_heads=32, kv_heads=32, dim=96, hidden=3072, intermediate=8192,
          vocab=32064, window=2047),
    Shape(name="Llama-3-8B", query_heads=32, kv_heads=8, dim=128, hidden=4096, intermediate=14336, vocab=128256),
    Shape(name="Gemma-2-9B", query_heads=16, kv_heads=8, dim=256, hidden=3584, intermediate=14336,
          vocab=256000, window=4096, soft_cap=50.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one compiled kernel takes: registers a thread, bytes spilled a thread, bytes of shared memory a program."""

    kernel: str
    capability: int
    dtype: str
    shape: str
    registers: int
    spilled: int
    shared: int
    warps: int
    buffers: int  # tiles of KV in flight; 0: the kernel has no pipeline


def cases(shape: Shape, dtype: torch.dtype, capability: int) -> Iterator[Launch]:
    """Yield a launch of every kernel, over tensors without memory."""
    heads = torch.empty((64, shape.query_heads + 2 * shape.kv_heads, shape.dim), dtype=dtype, device=_META)
    query = heads[:, : shape.query_heads]
    key = heads[:, shape.query_heads : shape.query_heads + shape.kv_heads]
    form = AttentionForm(shape.dim**-0.5, shape.window, shape.soft_cap)
    pages = _pages(shape, dtype)
    layer = pages.layers[0]
    for context in (400, 8000):  # in one part, in several
        yield decode_launch(query, layer, _batch(64, 1, context), form, capability)[0]
        yield decode_launch(query, layer, _part(_batch(64, 1, context)), form, capability, wide=True)[0]
    yield prefill_launch(query, layer, _batch(2, 32, 8000), form, capability)[0]
    yield prefill_launch(query, layer, _part(_batch(2, 32, 8000)), form, capability, wide=True)[0]
    parts = torch.empty((16, 64, shape.query_heads, shape.dim), dtype=torch.float32, device=_META)
    yield merge_launch(parts, parts[..., 0], dtype)[0]
    slots = _whole(64, torch.int64)
    table = torch.empty((8192, shape.dim), dtype=torch.float32, device=_META)
    yield kv_write_launch(key, key, layer, slots)
    yield rope_launch(heads, table, _whole(64, torch.int32))
    yield rope_kv_write_launch(heads, table, _whole(64, torch.int32), layer, slots)
    hidden = torch.empty((64, shape.hidden), dtype=dtype, device=_META)
    yield rms_norm_launch(hidden, hidden[0], 1e-5, hidden)[0]
    yield rms_norm_launch(query, hidden[0], 1e-5, None)[0]
    gate_up = torch.empty((64, 2 * shape.intermediate), dtype=dtype, device=_META)
    yield silu_mul_launch(gate_up)[0]
    yield gelu_mul_launch(gate_up)[0]
    launch, slabs = gather_launch(pages, slots, None, None)
    yield launch
    yield gather_launch(pages, slots, slabs, slots)[0]
    yield scatter_launch(slabs, pages, slots, slots)
    yield copy_launch(pages, slots, slots)
    logits = torch.empty((64, shape.vocab), dtype=dtype, device=_META)
    yield sample_launch(logits, torch.empty((64, 5), dtype=torch.float64, device=_META))[0]
    words = torch.empty((64, -(-shape.vocab // 32)), dtype=torch.int32, device=_META)
    yield mask_launch(logits, slots, words)


def compile_launch(launch: Launch, capability: int) -> Any:
    """Return the compiled kernel of a launch for a compute capability (80: A100, 90: H100)."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + _TYPES[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def cost_of(launch: Launch, capability: int, shape: Shape, dtype: torch.dtype) -> Cost:
    """Compile a launch and read its cost."""
    compiled = compile_launch(launch, capability)
    usage = _resources(compiled.asm["cubin"])
    return Cost(
        kernel=launch.kernel.__name__,
        capability=capability,
        dtype=_TYPES[dtype],
        shape=shape.name,
        registers=usage["REG"],
        spilled=usage["STACK"] + usage["LOCAL"],
        shared=compiled.metadata.shared,
        warps=launch.num_warps,
        buffers=_buffers(compiled.asm["ttgir"]),
    )


def costs() -> Iterator[Cost]:
    """Yield the cost of every kernel for every generation, model shape and element size."""
    for capability, shape, dtype in product(CAPABILITIES, SHAPES, (torch.bfloat16, torch.float32)):
        for launch in cases(shape, dtype, capability):
            yield cost_of(launch, capability, shape, dtype)


def _pages(shape: Shape, dtype: torch.dtype) -> Pages:
    form = PageShape(
        num_layers=32, num_blocks=4096, block_size=16, num_kv_heads=shape.kv_heads, head_dim=shape.dim
    )  # fmt: skip
    return Pages.empty(form, dtype, _META)


def _whole(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((count,), dtype=dtype, device=_META)


def _batch(sequences: int, query: int, context: int) -> AttentionBatch:
    tokens = sequences * query
    return AttentionBatch(
        positions=_whole(tokens, torch.int32),
        slots=_whole(tokens, torch.int64),
        query_starts=_whole(sequences + 1, torch.int32),
        contexts=_whole(sequences, torch.int32),
        rows=_whole(sequences, torch.int32),
        block_table=torch.empty((256, 512), dtype=torch.int32, device=_META),
        max_query=query,
        max_context=context,
    )


def _part(batch: AttentionBatch) -> AttentionBatch:
    """Return the batch over a part of its contexts."""
    return replace(batch, limits=batch.contexts)


def _resources(binary: bytes) -> dict[str, int]:
    """Return what `cuobjdump` says of the one kernel in a binary."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", told)}


def _buffers(intermediate: str) -> int:
    """Return the smallest number of buffers that a pipelined load rotates through; 0: nothing is loaded ahead."""
    pipelined = re.findall(r"ttg\.local_alloc\s*:\s*\(\)\s*->\s*!ttg\.memdesc<(\d+)x\d+x\d+x", intermediate)
    return min(map(int, pipelined), default=0) if "async_copy_global_to_local" in intermediate else 0


def main() -> int:
    """Print all costs."""
    parser = argparse.ArgumentParser(description="What the Triton kernels cost, compiled without a GPU")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    if not as_json:
        print("| kernel | sm | dtype | shape | registers | spilled | shared | warps | KV buffers |")
        print("|---|---|---|---|---|---|---|---|---|")
    for cost in costs():
        row = asdict(cost)
        print(json.dumps(row) if as_json else "| " + " | ".join(map(str, row.values())) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
