"""Paged attention and KV writes against float64. Unwritten slots are NaN throughout: none may reach a result."""

import pytest
import torch

from kernels.batch import AttentionForm
from kernels.ops import Ops
from tests.kernels.cases import Heads, assert_close, exact_attention, make_case

FORM = AttentionForm(0.125)
LENGTHS = [(1, 1), (1, 7), (1, 16), (1, 17), (1, 301), (1, 777), (5, 5), (3, 40), (33, 65), (64, 64), (47, 211)]
LENGTHS += [(4, 514), (10, 600)]  # few queries, whose KV is split: some see nothing of the last part


def check(
    ops: Ops, heads: Heads, sequences: list[tuple[int, int]], block_size: int, form: AttentionForm | None = None
) -> None:
    """Compare one batch with the oracle."""
    case = make_case(ops, heads, sequences, block_size=block_size)
    form = form or AttentionForm(heads.dim**-0.5)
    assert_close(ops.paged_attention(case.query, case.pages, case.batch, form), exact_attention(case, form))


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 128])
def test_any_block_size(ops: Ops, block_size: int) -> None:
    """Decodes and prefill chunks of odd lengths in one batch are right for each block size."""
    check(ops, Heads(9, 3, 64), LENGTHS, block_size)


@pytest.mark.parametrize("block_size", [1, 5, 8, 17, 24, 48])
@pytest.mark.parametrize("window", [6, 37])
def test_window_in_any_block_size(ops: Ops, block_size: int, window: int) -> None:
    """A window may begin, and a context end, at any slot of a block: in a pair, or at a slot without one."""
    check(
        ops,
        Heads(4, 2, 40),
        [(1, n) for n in range(31, 56)] + [(3, 50), (20, 67)],
        block_size,
        AttentionForm(0.2, window),
    )


@pytest.mark.parametrize("dim", [2, 16, 40, 64, 80, 96, 128])
def test_any_head_size(ops: Ops, dim: int) -> None:
    """Head sizes that are and are not multiples of the vector length are right."""
    check(ops, Heads(4, 2, dim), LENGTHS, 16)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 12, 16, 40])
def test_any_group(ops: Ops, group: int) -> None:
    """Any number of query heads may share a KV head."""
    check(ops, Heads(2 * group, 2, 64), [(1, 19), (1, 300), (9, 70)], 16)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 63, 64, 100, 255, 256, 257, 600, 1000])
def test_any_window(ops: Ops, window: int) -> None:
    """A sliding window of any length hides what is before it, in decodes whose KV is split and in chunks."""
    check(ops, Heads(6, 2, 64), LENGTHS, 16, AttentionForm(0.125, window))


def test_stale_slots_before_the_window(ops: Ops) -> None:
    """What lies before the window of all queries is not read, be it NaN."""
    heads, form = Heads(4, 2, 64), AttentionForm(0.125, 40)
    case = make_case(ops, heads, [(1, 333), (5, 90)], block_size=16)
    exact = exact_attention(case, form)
    nothing = torch.full((1, 2, 64), float("nan"), dtype=ops.dtype)
    for row, first_seen in zip(case.batch.rows.tolist(), (333 - 40, 90 - 5 + 1 - 40), strict=True):
        for position in range(first_seen):
            slot = case.batch.block_table[row, position // 16].long() * 16 + position % 16
            ops.kv_write(nothing, nothing, case.pages, slot[None])
    assert_close(ops.paged_attention(case.query, case.pages, case.batch, form), exact)


@pytest.mark.parametrize("soft_cap", [0.5, 5.0, 50.0])
def test_soft_cap(ops: Ops, soft_cap: float) -> None:
    """Scores are bent by a soft cap, together with a window and large scores."""
    check(ops, Heads(6, 2, 64), LENGTHS, 16, AttentionForm(1.0, 33, soft_cap))


def test_sequence_alone(ops: Ops) -> None:
    """One sequence of one token attends to itself: the result is its value."""
    case = make_case(ops, Heads(2, 2, 64), [(1, 1)], block_size=16)
    out = ops.paged_attention(case.query, case.pages, case.batch, FORM)
    assert_close(out, case.values[0].flatten(1).double())


def test_result_ignores_batch_mates(ops: Ops) -> None:
    """A decode's attention is the same to the bit, alone and in a batch."""
    heads = Heads(6, 2, 64)
    case = make_case(ops, heads, [(1, 600), (1, 30), (20, 90)], block_size=16)
    together = ops.paged_attention(case.query, case.pages, case.batch, FORM)
    alone = type(case.batch)(
        positions=case.batch.positions[:1],
        slots=case.batch.slots[:1],
        query_starts=case.batch.query_starts[:2],
        contexts=case.batch.contexts[:1],
        rows=case.batch.rows[:1],
        block_table=case.batch.block_table,
        max_query=1,
        max_context=600,
    )
    assert torch.equal(ops.paged_attention(case.query[:1], case.pages, alone, FORM), together[:1])


def test_scores_that_grow(ops: Ops) -> None:
    """Scores that rise and fall by hundreds along the context, so that sums are scaled again and again, are right."""
    heads = Heads(4, 2, 64)
    case = make_case(ops, heads, [(1, 700), (40, 300)], block_size=16)
    for index, key in enumerate(case.keys):
        height = torch.linspace(0, 60, key.shape[0]).sin() * torch.linspace(0.1, 30, key.shape[0])
        key.copy_(key * 0.1 + (height[:, None, None] * 0.5))
        row, position = int(case.batch.rows[index]), torch.arange(key.shape[0])
        slots = case.batch.block_table[row, position // 16].long() * 16 + position % 16
        ops.kv_write(key, case.values[index], case.pages, slots)
    assert_close(ops.paged_attention(case.query, case.pages, case.batch, FORM), exact_attention(case, FORM))


def test_large_scores(ops: Ops) -> None:
    """Scores in the thousands overflow nothing: attention goes to the best key."""
    case = make_case(ops, Heads(2, 1, 64), [(1, 90), (4, 50)], block_size=16)
    assert_close(
        ops.paged_attention(case.query, case.pages, case.batch, AttentionForm(40.0)),
        exact_attention(case, AttentionForm(40.0)),
    )


@pytest.mark.parametrize("scale", [1e4, 1e7, 1e10, 1e20, 1e30])
def test_enormous_scores(ops: Ops, scale: float) -> None:
    """Scores whose rounding errors alone are more than an exponential can hold end in the best key, and end at all."""
    form = AttentionForm(scale)
    case = make_case(ops, Heads(4, 2, 64), [(1, 90), (1, 700), (4, 50), (40, 300)], block_size=16)
    assert_close(ops.paged_attention(case.query, case.pages, case.batch, form), exact_attention(case, form))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_infinite_keys(ops: Ops, value: float) -> None:
    """A key of infinity makes a row NaN, as in the formula, or counts nothing; no other sequence sees it."""
    heads = Heads(2, 1, 64)
    case = make_case(ops, heads, [(1, 90), (1, 90)], block_size=16)
    slot = case.batch.block_table[case.batch.rows[0], 1].long() * 16 + 3
    key = torch.full((1, 1, 64), value, dtype=ops.dtype)
    case.query.abs_()
    case.keys[0][19] = value
    ops.kv_write(key, case.values[0][19:20], case.pages, slot[None])
    found = ops.paged_attention(case.query, case.pages, case.batch, FORM)
    exact = exact_attention(case, FORM)
    assert found.isnan().any(-1).tolist() == exact.isnan().any(-1).tolist() == [value > 0, False]
    assert_close(found[exact.isfinite()], exact[exact.isfinite()])


def test_stale_slot_shows(ops: Ops) -> None:
    """A NaN inside the context is not hidden by the softmax: the result is NaN."""
    heads = Heads(2, 1, 64)
    case = make_case(ops, heads, [(1, 40)], block_size=16)
    slot = case.batch.block_table[case.batch.rows[0], 1].long() * 16 + 3
    nothing = torch.full((1, 1, 64), float("nan"), dtype=ops.dtype)
    ops.kv_write(nothing, nothing, case.pages, slot[None])
    assert ops.paged_attention(case.query, case.pages, case.batch, FORM).isnan().all()


def test_negative_slot_writes_nothing(ops: Ops) -> None:
    """Slot -1 leaves the pages as they were, and its neighbours in the call are still written."""
    heads = Heads(2, 2, 64)
    case = make_case(ops, heads, [(1, 20)], block_size=16)
    before = case.pages.data.clone()
    key = torch.randn(3, 2, 64).to(ops.dtype)
    ops.kv_write(key, key, case.pages, torch.tensor([-1, -1, -1]))
    assert torch.equal(case.pages.data.nan_to_num(7.0), before.nan_to_num(7.0))
    row = int(case.batch.rows[0])
    slots = case.batch.block_table[row, :2].long().repeat_interleave(16)[:20] * 16 + torch.arange(20) % 16
    slots[:10] = -1
    new = torch.randn(20, 2, 64).to(ops.dtype)
    ops.kv_write(new, new, case.pages, slots)
    for kept in (case.keys[0], case.values[0]):
        kept[10:] = new[10:]
    assert_close(ops.paged_attention(case.query, case.pages, case.batch, FORM), exact_attention(case, FORM))
