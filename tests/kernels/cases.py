"""Random inputs for kernel tests, and attention in float64 over plain tensors: the oracle of every backend."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.batch import AttentionBatch, AttentionForm
from kernels.ops import Ops
from kernels.pages import LayerPages, PageShape

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads and their size."""

    query: int
    kv: int
    dim: int


@dataclass(frozen=True)
class Case:
    """A filled cache and the queries over it."""

    batch: AttentionBatch
    query: torch.Tensor  # [T, H, D]
    pages: LayerPages
    keys: list[torch.Tensor]  # per sequence [context, H_kv, D]
    values: list[torch.Tensor]


def make_case(ops: Ops, heads: Heads, sequences: Sequence[tuple[int, int]], *, block_size: int, seed: int = 0) -> Case:
    """Write the KV of `sequences` (query length, context) into shuffled blocks of a pool that is NaN elsewhere."""
    random = torch.Generator().manual_seed(seed)
    needed = [-(-context // block_size) for _, context in sequences]
    shape = PageShape(
        num_layers=1,
        num_blocks=sum(needed) + 3,
        block_size=block_size,
        num_kv_heads=heads.kv,
        head_dim=heads.dim,
    )
    pages = ops.empty_pages(shape)
    pages.fill(torch.arange(shape.num_blocks, device=ops.device), float("nan"))
    order = torch.randperm(shape.num_blocks, generator=random).to(torch.int32)
    table = torch.full((len(sequences) + 2, max(needed) + 1), -1, dtype=torch.int32)
    rows = torch.randperm(len(sequences) + 2, generator=random)[: len(sequences)].to(torch.int32)
    keys, values, used = [], [], 0
    for row, count, (_, context) in zip(rows.tolist(), needed, sequences, strict=True):
        table[row, :count] = order[used : used + count]
        used += count
        key, value = (_normal((context, heads.kv, heads.dim), ops, random) for _ in range(2))
        position = torch.arange(context)
        slots = table[row, position // block_size].long() * block_size + position % block_size
        ops.kv_write(key, value, pages.layers[0], slots.to(ops.device))
        keys.append(key)
        values.append(value)
    lengths = torch.tensor([length for length, _ in sequences])
    starts = torch.cat((torch.zeros(1), lengths.cumsum(0))).to(torch.int32)
    contexts = torch.tensor([context for _, context in sequences], dtype=torch.int32)
    positions = torch.cat([torch.arange(context - length, context) for length, context in sequences]).to(torch.int32)
    batch = AttentionBatch(
        positions=positions.to(ops.device),
        slots=torch.full((len(positions),), -1, device=ops.device),
        query_starts=starts.to(ops.device),
        contexts=contexts.to(ops.device),
        rows=rows.to(ops.device),
        block_table=table.to(ops.device),
        max_query=int(lengths.max()),
        max_context=int(contexts.max()),
    )
    # strided rows, as in a fused QKV
    query = _normal((int(starts[-1]), heads.query + 2 * heads.kv, heads.dim), ops, random)[:, : heads.query]
    return Case(batch, query, pages.layers[0], keys, values)


def exact_attention(case: Case, form: AttentionForm) -> torch.Tensor:
    """Return what `paged_attention` should, in float64."""
    return exact_parts(case, form, case.batch.contexts.tolist())[0].flatten(1)


def exact_parts(case: Case, form: AttentionForm, limits: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention over the first tokens of each sequence `[T, H, D]`, and its log-sum-exp `[T, H]`, in float64."""
    out, lse = [], []
    starts = case.batch.query_starts.tolist()
    for index, (key, value, limit) in enumerate(zip(case.keys, case.values, limits, strict=True)):
        query = case.query[starts[index] : starts[index + 1]].double()
        group = query.shape[1] // key.shape[1]
        wide_key, wide_value = (part.double().repeat_interleave(group, 1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, wide_key) * form.scale
        if form.soft_cap:
            scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
        context, length = key.shape[0], query.shape[0]
        position = torch.arange(context, device=query.device)
        own = position[context - length :, None]
        hidden = (position > own) | (position <= own - (form.window or context)) | (position >= limit)
        scores = scores.masked_fill(hidden, float("-inf"))
        out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), wide_value))
        lse.append(scores.logsumexp(-1).T)
    return torch.cat(out), torch.cat(lse)


def check_parts(ops: Ops, case: Case, form: AttentionForm, limits: Sequence[int]) -> None:
    """Compare attention over parts of the contexts with the oracle: joined by their log-sum-exps, and these."""
    batch = replace(
        case.batch, limits=torch.tensor(limits, dtype=torch.int32, device=ops.device), max_context=max(limits)
    )
    parts, each = ops.partial_attention(case.query, case.pages, batch, form)
    assert parts.dtype == each.dtype == torch.float32
    assert parts.shape[:3] == each.shape
    lse = each.logsumexp(0)
    out, total = exact_parts(case, form, limits)
    seen = total > float("-inf")
    assert torch.equal(lse > float("-inf"), seen)
    tolerance = TOLERANCE[ops.dtype]
    torch.testing.assert_close(lse[seen].double(), total[seen], atol=tolerance, rtol=tolerance)
    rows = seen.all(-1)
    found = ops.merge_partials(parts[:, rows], each[:, rows], dtype=torch.float32)
    torch.testing.assert_close(found.double(), out[rows], atol=tolerance, rtol=tolerance)


def assert_close(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Fail unless `found` is within its dtype's tolerance of the float64 `exact`, absolute and relative."""
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), exact.double(), atol=tolerance, rtol=tolerance)


def _normal(shape: tuple[int, ...], ops: Ops, random: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=random).to(ops.device, ops.dtype)
