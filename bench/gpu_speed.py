"""Speed of every Triton kernel beside the GPU's measured copy bandwidth and product: the second part of `bench.gpu`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from bench.gpu_limits import GIGA, Limits, seconds_each
from bench.report import Row
from kernels.batch import AttentionBatch, AttentionForm
from kernels.ops import Ops
from kernels.pages import LayerPages, PageShape

BLOCK = 16
CACHED = 256 << 20  # bytes; what is read in turn is more than any cache holds
ENOUGH_BATCH, ENOUGH_CONTEXT, TARGET = 32, 8192, 0.75  # from there on, so much of the copy bandwidth


@dataclass(frozen=True, slots=True)
class Model:
    """Attention's shape."""

    name: str
    heads: int
    kv_heads: int
    dim: int

    @property
    def token_elements(self) -> int:
        """Of keys and values in one layer."""
        return 2 * self.kv_heads * self.dim


LLAMA = Model("Llama-3-8B", 32, 8, 128)
MODELS = (LLAMA, Model("SmolLM2-135M", 9, 3, 64), Model("Gemma-2-9B", 16, 8, 256), Model("no GQA", 32, 32, 128))
DECODES = ((1, 8192), (8, 8192), (32, 1024), (32, 8192), (128, 1024), (128, 8192), (32, 32768))
OTHER_DECODES = ((32, 8192), (64, 8192))
PREFILLS = ((700, 700), (2048, 2048), (8192, 8192), (512, 8192))


@dataclass(frozen=True)
class Sequences:
    """A batch over one of several sets of blocks, which calls take in turn."""

    batches: tuple[AttentionBatch, ...]
    pages: LayerPages

    @classmethod
    def made(cls, ops: Ops, model: Model, size: int, *, query: int, context: int) -> "Sequences":
        """Fill a pool with random keys and values and cut it, shuffled, into sets of sequences."""
        columns = -(-context // BLOCK)
        one_set = size * context * model.token_elements * ops.dtype.itemsize
        sets = 1 if ops.device.type == "cpu" else max(1, -(-CACHED // one_set))
        shape = PageShape(
            num_layers=1,
            num_blocks=sets * size * columns,
            block_size=BLOCK,
            num_kv_heads=model.kv_heads,
            head_dim=model.dim,
        )
        pages = ops.empty_pages(shape).layers[0]
        pages.data.normal_()
        table = torch.randperm(shape.num_blocks, device=ops.device).to(torch.int32).view(sets * size, columns)
        return cls(tuple(_batch(ops, table, size, number, query, context) for number in range(sets)), pages)


def _batch(ops: Ops, table: torch.Tensor, size: int, number: int, query: int, context: int) -> AttentionBatch:
    whole = partial(torch.arange, dtype=torch.int32, device=ops.device)
    return AttentionBatch(
        positions=whole(context - query, context).repeat(size),
        slots=torch.full((size * query,), -1, dtype=torch.int64, device=ops.device),
        query_starts=whole(0, (size + 1) * query, query),
        contexts=torch.full((size,), context, dtype=torch.int32, device=ops.device),
        rows=whole(number * size, (number + 1) * size),
        block_table=table,
        max_query=query,
        max_context=context,
        num_decodes=size if query == 1 else 0,
    )


def decode_rows(ops: Ops, limits: Limits, *, tiny: bool) -> Iterator[Row]:
    """Yield the decode attention of each model: GB/s of keys and values, merging included."""
    for model in MODELS[1:2] if tiny else MODELS:
        for size, context in ((2, 40),) if tiny else DECODES if model is LLAMA else OTHER_DECODES:
            sequences = Sequences.made(ops, model, size, query=1, context=context)
            query = torch.randn(size, model.heads, model.dim, device=ops.device).to(ops.dtype)
            seconds = _attention_seconds(ops, sequences, query, model)
            read = size * context * model.token_elements * ops.dtype.itemsize
            aimed = size >= ENOUGH_BATCH and context >= ENOUGH_CONTEXT
            yield Row(
                case=f"{model.name}, batch {size}, context {context:,}",
                ours=read / seconds / GIGA,
                unit="GB/s",
                beside=limits.copy / GIGA,
                target=TARGET if aimed else None,
                note=f"{seconds * 1e6:.0f} us",
            )
            del sequences
            _free(ops)


def prefill_rows(ops: Ops, *, tiny: bool) -> Iterator[Row]:
    """Yield the attention of chunks in Tflop/s, beside torch's own over contiguous tensors where the chunk is all."""
    for model in MODELS[1:2] if tiny else MODELS[:3]:
        for query, context in ((9, 20),) if tiny else PREFILLS:
            sequences = Sequences.made(ops, model, 1, query=query, context=context)
            heads = torch.randn(query, model.heads, model.dim, device=ops.device).to(ops.dtype)
            flops = 4 * (query * context - query * (query - 1) // 2) * model.heads * model.dim
            seconds = _attention_seconds(ops, sequences, heads, model)
            peer = flops / _sdpa_seconds(ops, model, query) / 1e12 if query == context else None
            yield Row(
                case=f"{model.name}, {query:,} tokens" + (f" of {context:,}" if context != query else ""),
                ours=flops / seconds / 1e12,
                unit="Tflop/s",
                beside=peer,
                note=f"{seconds * 1e6:.0f} us",
            )
            del sequences
            _free(ops)


def memory_rows(ops: Ops, limits: Limits, *, tiny: bool) -> Iterator[Row]:
    """Yield what only moves memory: bytes read and written, beside a copy."""
    for case, call, moved in (*_elementwise(ops, 4 if tiny else 32768), *_moves(ops, 2 if tiny else 512)):
        seconds = seconds_each(lambda _, call=call: call(), count=8, where=ops.device)  # type: ignore[misc]
        yield Row(
            case=case,
            ours=moved / seconds / GIGA,
            unit="GB/s",
            beside=limits.copy / GIGA,
            note=f"{seconds * 1e6:.0f} us",
        )


def _attention_seconds(ops: Ops, sequences: Sequences, query: torch.Tensor, model: Model) -> float:
    form, batches = AttentionForm(model.dim**-0.5), sequences.batches

    def call(number: int) -> None:
        ops.paged_attention(query, sequences.pages, batches[number % len(batches)], form)

    return seconds_each(call, count=max(4, min(len(batches), 64)), where=ops.device)


def _sdpa_seconds(ops: Ops, model: Model, tokens: int) -> float:
    query, key, value = (
        torch.randn(1, heads, tokens, model.dim, device=ops.device).to(ops.dtype)
        for heads in (model.heads, model.kv_heads, model.kv_heads)
    )

    def call(_: int) -> None:
        F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return seconds_each(call, count=4, where=ops.device)


def _elementwise(ops: Ops, tokens: int) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Yield the ops of a layer of Llama-3-8B."""
    hidden, residual = (torch.randn(tokens, 4096, device=ops.device).to(ops.dtype) for _ in range(2))
    weight = torch.ones(4096, device=ops.device, dtype=ops.dtype)
    yield "rms_norm", lambda: ops.rms_norm(hidden, weight, eps=1e-5), 2 * hidden.nbytes
    yield "rms_norm + residual", lambda: ops.rms_norm(hidden, weight, eps=1e-5, residual=residual), 4 * hidden.nbytes
    gate_up = torch.randn(tokens, 2 * 14336, device=ops.device).to(ops.dtype)
    yield "silu_mul", lambda: ops.silu_mul(gate_up), gate_up.nbytes * 3 // 2
    yield "gelu_mul", lambda: ops.gelu_mul(gate_up), gate_up.nbytes * 3 // 2
    heads = torch.randn(tokens, 48, 128, device=ops.device).to(ops.dtype)
    blocks = -(-tokens // BLOCK)
    shape = PageShape(num_layers=1, num_blocks=blocks, block_size=BLOCK, num_kv_heads=8, head_dim=128)
    layer = ops.empty_pages(shape).layers[0]
    positions = torch.arange(tokens, device=ops.device, dtype=torch.int32)
    angles = torch.rand(tokens, 64, device=ops.device)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    slots = torch.randperm(tokens, device=ops.device)
    head = 2 * tokens * 128 * ops.dtype.itemsize  # read and written
    yield "rope", lambda: ops.rope(heads[:, :40], table, positions), 40 * head
    yield "kv_write", lambda: ops.kv_write(heads[:, 32:40], heads[:, 40:], layer, slots), 16 * head
    yield "rope_kv_write", lambda: ops.rope_kv_write(heads, table, positions, layer, slots), 48 * head
    parts = torch.randn(16, max(1, tokens // 32), 32, 128, device=ops.device)
    lse = torch.randn(parts.shape[:-1], device=ops.device)
    yield "merge_partials", lambda: ops.merge_partials(parts, lse), parts.nbytes + parts[0].nbytes // 2


def _moves(ops: Ops, count: int) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Yield the moving of whole blocks over all layers of Llama-3-8B."""
    layers = 2 if ops.device.type == "cpu" else 32
    shape = PageShape(num_layers=layers, num_blocks=3 * count, block_size=BLOCK, num_kv_heads=8, head_dim=128)
    pages = ops.empty_pages(shape)
    pages.data.zero_()
    some, others, _ = torch.randperm(3 * count, device=ops.device).view(3, count).unbind()
    slabs = ops.gather_blocks(pages, some)
    yield "gather_blocks", lambda: ops.gather_blocks(pages, some), 2 * slabs.nbytes
    yield "scatter_blocks", lambda: ops.scatter_blocks(slabs, pages, others), 2 * slabs.nbytes
    yield "copy_blocks", lambda: ops.copy_blocks(pages, some, others), 2 * slabs.nbytes


def _free(ops: Ops) -> None:
    if ops.device.type == "cuda":
        torch.cuda.empty_cache()
