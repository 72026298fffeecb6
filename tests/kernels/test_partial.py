"""Attention over parts of contexts, with log-sum-exps, against float64; and over blocks that lie in slabs, to the bit.

What is not there is NaN throughout: it may not reach a result.
"""

from dataclasses import replace

import pytest
import torch

from kernels.batch import AttentionForm, Hosted
from kernels.ops import Ops
from kernels.pages import Pages
from tests.kernels.cases import Case, Heads, assert_close, check_parts, exact_attention, make_case

LENGTHS = [(1, 1), (1, 17), (1, 301), (1, 777), (5, 5), (3, 40), (33, 65), (47, 211), (4, 514), (10, 1100)]
LIMITS = [1, 3, 300, 700, 2, 0, 48, 1, 512, 1099]
FORM = AttentionForm(0.125)


@pytest.mark.parametrize("block_size", [1, 8, 16, 24])
def test_parts_in_any_block_size(ops: Ops, block_size: int) -> None:
    """Limits before, among and behind the queries, at nothing and within the last block, for each block size."""
    check_parts(ops, make_case(ops, Heads(9, 3, 64), LENGTHS, block_size=block_size), FORM, LIMITS)


@pytest.mark.parametrize("dim", [2, 40, 80, 128])
def test_parts_of_any_head_size(ops: Ops, dim: int) -> None:
    """Head sizes that are and are not multiples of the vector length."""
    check_parts(ops, make_case(ops, Heads(4, 2, dim), LENGTHS, block_size=16), AttentionForm(dim**-0.5), LIMITS)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 64, 255, 256, 600])
@pytest.mark.parametrize(
    "limits", [LIMITS, [0] * 10, [1, 16, 1, 1, 1, 1, 32, 176, 496, 600]], ids=["some", "none", "old"]
)
def test_parts_behind_a_window(ops: Ops, window: int, limits: list[int]) -> None:
    """A query whose window begins behind all that is there sees nothing of it; others of its tile may."""
    check_parts(ops, make_case(ops, Heads(6, 2, 64), LENGTHS, block_size=16), AttentionForm(0.125, window), limits)


def test_parts_with_a_soft_cap(ops: Ops) -> None:
    """Scores are bent before they are summed."""
    check_parts(ops, make_case(ops, Heads(6, 2, 64), LENGTHS, block_size=16), AttentionForm(1.0, 33, 5.0), LIMITS)


@pytest.mark.parametrize("scale", [1e4, 1e20])
def test_parts_of_enormous_scores(ops: Ops, scale: float) -> None:
    """Sums overflow nothing."""
    case = make_case(ops, Heads(4, 2, 64), [(1, 90), (1, 700), (4, 50), (40, 300)], block_size=16)
    batch = replace(case.batch, limits=torch.tensor([80, 600, 48, 280], dtype=torch.int32), max_context=600)
    parts, lse = ops.partial_attention(case.query, case.pages, batch, AttentionForm(scale))
    assert lse.isfinite().all() and parts.isfinite().all()


def test_stale_slot_shows_in_a_part(ops: Ops) -> None:
    """A NaN among what is there is in the part and in its log-sum-exp; behind the limit it is in neither."""
    case = make_case(ops, Heads(2, 1, 64), [(1, 640), (3, 40)], block_size=16)
    nothing = torch.full((1, 1, 64), float("nan"), dtype=ops.dtype)
    for row, column in zip(case.batch.rows.tolist(), (37, 1), strict=True):
        slot = case.batch.block_table[row, column].long() * 16 + 3
        ops.kv_write(nothing, nothing, case.pages, slot[None])
    for limits, stale in (([640, 40], [True] * 4), ([592, 16], [False] * 4), ([640, 16], [True, False, False, False])):
        batch = replace(case.batch, limits=torch.tensor(limits, dtype=torch.int32), max_context=640)
        parts, lse = ops.partial_attention(case.query, case.pages, batch, FORM)
        joined = ops.merge_partials(parts, lse, dtype=torch.float32)
        assert lse.logsumexp(0).isnan().all(-1).tolist() == stale
        assert joined.isnan().any(-1).any(-1).tolist() == stale


def hosted(ops: Ops, case: Case, counts: list[int]) -> Case:
    """Return the case with as many leading blocks of each sequence in slabs, whose pages are poisoned."""
    size, num_layers = case.pages.shape.block_size, 3
    elements = case.pages.shape.block_elements
    slabs = torch.full((sum(counts) + 4, num_layers, elements), float("nan"), dtype=ops.dtype)
    free = torch.randperm(len(slabs), generator=torch.Generator().manual_seed(5)).tolist()
    table = torch.full((len(counts), max(counts) + 1), 10_000, dtype=torch.int32)
    pages = replace(case.pages, data=case.pages.data.clone(), layer=1)
    blocks_table = case.batch.block_table.clone()
    one = Pages(pages.shape, pages.data[None], (pages,))
    for index, (row, count) in enumerate(zip(case.batch.rows.tolist(), counts, strict=True)):
        blocks = blocks_table[row, :count].long()
        places = torch.tensor([free.pop() for _ in range(count)], dtype=torch.int64)
        ops.gather_blocks(one, blocks, out=slabs[:, 1:2], places=places)
        one.fill(blocks, float("nan"))
        table[index, :count] = places.to(torch.int32)
        blocks_table[row, :count] = 10_000
    tokens = torch.tensor([count * size for count in counts], dtype=torch.int32)
    return replace(
        case,
        pages=pages,
        batch=replace(case.batch, block_table=blocks_table, hosted=Hosted(slabs=slabs, table=table, tokens=tokens)),
    )


@pytest.mark.parametrize("block_size", [1, 5, 8, 16, 24, 128])
@pytest.mark.parametrize("form", [FORM, AttentionForm(0.125, 37), AttentionForm(1.0, 300, 5.0)], ids=str)
def test_blocks_in_slabs(ops: Ops, block_size: int, form: AttentionForm) -> None:
    """Decodes and chunks some, none or all but the last of whose blocks lie in slabs are right, and equal to the bit
    what they are with all blocks in the pages.
    """
    assert ops.reads_slabs
    case = make_case(ops, Heads(6, 2, 64), LENGTHS, block_size=block_size)
    most = [(context - length) // block_size for length, context in LENGTHS]
    for counts in (most, [(index % 3) * count // 2 for index, count in enumerate(most)], [0] * len(most)):
        moved = hosted(ops, case, counts)
        found = ops.paged_attention(moved.query, moved.pages, moved.batch, form)
        assert torch.equal(found, ops.paged_attention(case.query, case.pages, case.batch, form))
    assert_close(found, exact_attention(case, form))


def test_a_batch_may_have_no_slabs(ops: Ops) -> None:
    """A stream answers attention where there is one; without one the pages do."""
    case = make_case(ops, Heads(2, 1, 64), [(1, 40)], block_size=16)

    class Answer:
        def attend(self, query: torch.Tensor, pages: object, form: AttentionForm) -> torch.Tensor:
            return query.flatten(1) * form.scale

    plain = ops.paged_attention(case.query, case.pages, case.batch, FORM)
    assert torch.equal(ops.attend(case.query, case.pages, case.batch, FORM), plain)
    streamed = replace(case.batch, stream=Answer())
    assert torch.equal(ops.attend(case.query, case.pages, streamed, FORM), case.query.flatten(1) * 0.125)
