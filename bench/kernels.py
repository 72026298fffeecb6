"""The CPU's kernels against the machine's measured limits: `python -m bench.kernels`.

Limits come from the same run: memory read and copied, and a bf16 product by oneDNN. Shapes are the default model's
(SmolLM2-135M: 9 query heads, 3 of KV, head size 64, hidden 576). Every case walks over more memory than the caches
hold, so that figures in GB/s are the memory's:

    decode    attention of one token a sequence: GB/s of the keys and values that it reads, beside the same by torch
              (pages gathered to contiguous tensors, then scaled_dot_product_attention)
    prefill   attention of a chunk over its own keys, flop/s of what is not masked, beside the product's
    linear    all linears of a layer: few rows in GB/s of weights, many in flop/s
    others    bytes read and written, beside a copy
    logits    reductions and draws, GB/s of the logits, beside torch; so is the joining of attention's parts

Each figure is the median over --repeats; where there are two sides they alternate.
"""

import argparse
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from bench.bandwidth import Limits, measure_limits, seconds_each
from bench.kernel_ops import linear_rows, memory_rows
from bench.kernel_reductions import reduction_rows
from bench.report import Row, machine, medians, samples_of, show, take_turns, write
from kernels.batch import AttentionBatch, AttentionForm
from kernels.ops import Ops, select_backend
from kernels.pages import Pages, PageShape
from kernels.threads import usable_cores

HEADS, KV_HEADS, DIM = 9, 3, 64
BLOCK, LAYERS = 16, 8
POOL_TOKENS = 96 * 1024  # in each layer; 8 layers of them are 600 MB
TOKEN_BYTES = 2 * KV_HEADS * DIM * 2  # K and V of a token in one layer, bf16
FORM = AttentionForm(DIM**-0.5)
CPU = torch.device("cpu")
BATCHES, CONTEXTS, PREFILLS = (1, 8, 32), (64, 512, 2048), (128, 700, 2000)
LATE_CHUNK = (512, 8192)  # tokens, of context
GIGA = 1e9


@dataclass(frozen=True)
class Pool:
    """Pages full of random keys and values, in the backend's own order."""

    ops: Ops
    pages: Pages
    table: torch.Tensor  # [rows, columns]: every row has its own blocks, all in shuffled order

    @classmethod
    def filled(cls, ops: Ops, context: int) -> "Pool":
        """Return a pool that is cut into sequences of `context` tokens."""
        blocks = POOL_TOKENS // BLOCK
        shape = PageShape(num_layers=LAYERS, num_blocks=blocks, block_size=BLOCK, num_kv_heads=KV_HEADS, head_dim=DIM)
        pages = ops.empty_pages(shape)
        tile = torch.randn(1, blocks, shape.block_elements // 8).to(ops.dtype).repeat(1, 1, 8)
        pages.data.copy_(tile.expand(LAYERS, -1, -1))
        columns = -(-context // BLOCK)
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(0)).to(torch.int32)
        rows = blocks // columns
        return cls(ops, pages, order[: rows * columns].view(rows, columns).contiguous())

    def batch(self, size: int, turn: int, *, query: int, context: int) -> AttentionBatch:
        """Return the `turn`-th batch of sequences, each of `query` tokens at the end of `context`."""
        rows = (torch.arange(size) + turn * size) % self.table.shape[0]
        return AttentionBatch(
            positions=torch.arange(context - query, context, dtype=torch.int32).repeat(size),
            slots=torch.full((size * query,), -1),
            query_starts=torch.arange(0, (size + 1) * query, query, dtype=torch.int32),
            contexts=torch.full((size,), context, dtype=torch.int32),
            rows=rows.to(torch.int32),
            block_table=self.table,
            max_query=query,
            max_context=context,
            num_decodes=size if query == 1 else 0,
        )


def decode_rows(ops: Ops, limits: Limits, repeats: int) -> tuple[list[Row], list[dict[str, object]]]:
    """Measure decode attention beside gather and SDPA."""
    rows: list[Row] = []
    samples: list[dict[str, object]] = []
    for context in CONTEXTS:
        pool = Pool.filled(ops, context)
        for size in BATCHES:
            sides = {"ours": partial(_ours, pool, size, context), "torch": partial(_gathered, pool, size, context)}
            found = take_turns(sides, repeats=repeats)
            case = f"decode attention, batch {size}, context {context:,}"
            samples += samples_of(case, found, "GB/s")
            ours, torch_way = medians(found)
            aimed = context == CONTEXTS[-1]
            note = f"{GIGA * ours / limits.read:.0%} of memory read"
            rows.append(
                Row(case=case, ours=ours, unit="GB/s", beside=torch_way, target=20 if aimed else None, note=note)
            )
            if aimed:
                rows.append(Row(case=f"{case}, of DRAM", ours=ours, unit="GB/s", target=35))
    return rows, samples


def _ours(pool: Pool, size: int, context: int) -> float:
    """Return GB/s of KV over all layers and all sequences of the pool in turn."""
    turns = max(1, pool.table.shape[0] // size)
    batches = [pool.batch(size, turn, query=1, context=context) for turn in range(turns)]
    query = torch.randn(size, HEADS, DIM).to(pool.ops.dtype)

    def call(number: int) -> None:
        layer = pool.pages.layers[number % LAYERS]
        pool.ops.paged_attention(query, layer, batches[number // LAYERS], FORM)

    return size * context * TOKEN_BYTES / seconds_each(call, count=turns * LAYERS) / GIGA


def _gathered(pool: Pool, size: int, context: int) -> float:
    """Return GB/s of KV by plain torch over pages `[block, K or V, head, slot, D]`."""
    turns = max(1, pool.table.shape[0] // size)
    tables = [pool.table[pool.batch(size, turn, query=1, context=context).rows.long()].long() for turn in range(turns)]
    query = torch.randn(size, HEADS, 1, DIM).to(pool.ops.dtype)

    def call(number: int) -> None:
        blocks = pool.pages.layers[number % LAYERS].data.view(-1, 2, KV_HEADS, BLOCK, DIM)
        both = blocks[tables[number // LAYERS]]  # [S, blocks, 2, H_kv, slots, D]
        keys, values = both.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)[..., :context, :]
        F.scaled_dot_product_attention(query, keys, values, scale=FORM.scale, enable_gqa=True)

    return size * context * TOKEN_BYTES / seconds_each(call, count=min(turns * LAYERS, 64)) / GIGA


def prefill_rows(ops: Ops, limits: Limits, repeats: int) -> tuple[list[Row], list[dict[str, object]]]:
    """Measure the attention of whole prompts, and of one chunk late in a long one."""
    rows: list[Row] = []
    samples: list[dict[str, object]] = []
    for query, context in [(tokens, tokens) for tokens in PREFILLS] + [LATE_CHUNK]:
        pool = Pool.filled(ops, context)
        case = f"prefill attention, {query:,} tokens" + (f" of {context:,}" if context != query else "")
        found = take_turns({"ours": partial(_prefill, pool, query, context)}, repeats=repeats)
        samples += samples_of(case, found, "Gflop/s")
        rows.append(Row(case=case, ours=medians(found)[0], unit="Gflop/s", beside=limits.flops / GIGA))
    return rows, samples


def _prefill(pool: Pool, query: int, context: int) -> float:
    turns = pool.table.shape[0]
    batches = [pool.batch(1, turn, query=query, context=context) for turn in range(turns)]
    heads = torch.randn(query, HEADS, DIM).to(pool.ops.dtype)

    def call(number: int) -> None:
        layer = pool.pages.layers[number % LAYERS]
        pool.ops.paged_attention(heads, layer, batches[number // LAYERS % turns], FORM)

    pairs = query * context - query * (query - 1) // 2  # not masked
    return 4 * pairs * HEADS * DIM / seconds_each(call, count=LAYERS) / GIGA


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ops = select_backend("auto", device=CPU, dtype=torch.bfloat16)
    print(machine())
    limits = measure_limits()
    print(
        f"kernels: {ops.name}, bfloat16, {options.threads} threads. Limits: {limits.read / GIGA:.1f} GB/s read, "
        f"{limits.copy / GIGA:.1f} GB/s copied, {limits.flops / GIGA:,.0f} Gflop/s"
    )
    rows: list[Row] = []
    samples: list[dict[str, object]] = []
    with torch.inference_mode():
        for title, beside, part in (
            ("Decode attention", "gather + SDPA", decode_rows),
            ("Prefill attention", "product", prefill_rows),
            ("Linears of a layer", "limit", linear_rows),
            ("Memory-bound ops", "copy", memory_rows),
            ("Logits, and parts of attention", "torch", reduction_rows),
        ):
            found, measured = part(ops, limits, options.repeats)
            show(title, found, beside=beside)
            rows += found
            samples += measured
    write("kernels", rows, samples)


if __name__ == "__main__":
    main()
