"""The Triton kernels in Triton's interpreter, against float64. Grids are small: a program takes about ten milliseconds.

bfloat16 is left out, since the interpreter's arithmetic in it is wrong. `test_triton_aot.py` compiles for real GPUs.
"""

from dataclasses import replace

import pytest
import torch

from kernels.batch import AttentionForm
from kernels.pages import Pages, PageShape
from kernels.reference.ops import ReferenceOps
from kernels.triton_ops.ops import TritonOps
from tests.kernels.cases import Case, Heads, assert_close, check_parts, exact_attention, make_case
from tests.kernels.test_sampling import KINDS, make, masks, ways

CPU = torch.device("cpu")
FORM = AttentionForm(0.125)


@pytest.fixture(params=[torch.float32, torch.float16], ids=lambda dtype: str(dtype)[6:])
def ops(request: pytest.FixtureRequest) -> TritonOps:
    """The interpreted kernels in one dtype."""
    return TritonOps(CPU, request.param)


def check(ops: TritonOps, case: Case, form: AttentionForm = FORM) -> None:
    """Compare one batch with the oracle."""
    assert_close(ops.paged_attention(case.query, case.pages, case.batch, form), exact_attention(case, form))


# Head size, heads per KV head and block size, each value of one with several of the others.
GEOMETRIES = [
    *((64, 1, 16), (64, 3, 8), (64, 16, 32), (80, 2, 16), (80, 7, 32), (96, 1, 8), (96, 5, 16)),
    *((128, 4, 16), (128, 8, 32), (128, 12, 8), (256, 2, 32), (256, 16, 16), (64, 9, 1), (2, 1, 16)),
]


@pytest.mark.parametrize(("dim", "group", "block_size"), GEOMETRIES)
def test_decodes(ops: TritonOps, dim: int, group: int, block_size: int) -> None:
    """Decodes of one token, an odd length and a full block are right for each head size, group and block size."""
    check(ops, make_case(ops, Heads(group, 1, dim), [(1, 1), (1, 37), (1, 64)], block_size=block_size))


@pytest.mark.parametrize(("dim", "group", "block_size"), GEOMETRIES)
def test_chunks(ops: TritonOps, dim: int, group: int, block_size: int) -> None:
    """Prefill chunks from the start, in the middle, of one token and of a verification's few are right."""
    sequences = [(5, 5), (1, 1), (4, 41), (19, 70)]
    check(ops, make_case(ops, Heads(group, 1, dim), sequences, block_size=block_size))


def test_split_decode(ops: TritonOps) -> None:
    """A context over several splits, beside a short one that has fewer, is joined right."""
    check(ops, make_case(ops, Heads(2, 1, 64), [(1, 1030), (1, 20)], block_size=16))


@pytest.mark.parametrize("window", [1, 16, 33, 64, 500])
def test_window(ops: TritonOps, window: int) -> None:
    """A sliding window hides what is before it, in decodes and chunks; slots before it may hold NaN."""
    form = AttentionForm(0.125, window)
    for sequences in ([(1, 40), (1, 530)], [(1, 9), (30, 90)]):
        case = make_case(ops, Heads(2, 1, 64), sequences, block_size=16)
        exact = exact_attention(case, form)
        nothing = torch.full((1, 1, 64), float("nan"), dtype=ops.dtype)
        for row, (length, context) in zip(case.batch.rows.tolist(), sequences, strict=True):
            for position in range(0, context - length + 1 - window, 7):
                slot = case.batch.block_table[row, position // 16].long() * 16 + position % 16
                ops.kv_write(nothing, nothing, case.pages, slot[None])
        assert_close(ops.paged_attention(case.query, case.pages, case.batch, form), exact)


def test_soft_cap(ops: TritonOps) -> None:
    """Scores are bent by a soft cap, with and without a window."""
    for form in (AttentionForm(1.0, 0, 5.0), AttentionForm(1.0, 20, 0.5)):
        for sequences in ([(1, 40), (1, 3)], [(6, 60), (9, 9)]):
            check(ops, make_case(ops, Heads(4, 2, 64), sequences, block_size=16), form)


def test_mixed_batch(ops: TritonOps) -> None:
    """Leading decodes that the batch counts go to the split kernel, the chunks behind them to the other one."""
    case = make_case(ops, Heads(2, 1, 64), [(1, 530), (1, 5), (20, 45), (1, 33)], block_size=16)
    counted = type(case.batch)(
        **{name: getattr(case.batch, name) for name in case.batch.__slots__ if name != "num_decodes"}, num_decodes=2
    )
    assert_close(ops.paged_attention(case.query, case.pages, counted, FORM), exact_attention(case, FORM))


@pytest.mark.parametrize("window", [0, 1, 33, 500])
def test_parts(ops: TritonOps, window: int) -> None:
    """Parts of contexts with their log-sum-exps, in decodes of one split and of several, in chunks and in both."""
    form = AttentionForm(0.125, window)
    for sequences, limits in (
        ([(1, 40), (1, 60), (1, 9)], [20, 0, 9]),
        ([(1, 1100), (1, 5)], [1000, 5]),
        ([(5, 21), (19, 70), (1, 30)], [16, 48, 25]),
    ):
        check_parts(ops, make_case(ops, Heads(2, 1, 64), sequences, block_size=16), form, limits)
    case = make_case(ops, Heads(2, 1, 64), [(1, 700), (1, 5), (20, 45), (1, 33)], block_size=16)
    check_parts(ops, replace(case, batch=replace(case.batch, num_decodes=2)), form, [600, 0, 16, 33])


def test_parts_with_a_soft_cap(ops: TritonOps) -> None:
    """Scores are bent before they are summed; a part of one program sums in float32 too."""
    case = make_case(ops, Heads(4, 2, 64), [(6, 60), (9, 9)], block_size=16)
    check_parts(ops, case, AttentionForm(1.0, 20, 5.0), [48, 3])


def test_result_ignores_batch_mates(ops: TritonOps) -> None:
    """A decode's attention is the same to the bit, alone and beside a longer one."""
    case = make_case(ops, Heads(2, 1, 64), [(1, 30), (1, 30)], block_size=16)
    mate = make_case(ops, Heads(2, 1, 64), [(1, 30), (1, 60)], block_size=16)
    alone, beside = (ops.paged_attention(one.query, one.pages, one.batch, FORM)[0] for one in (case, mate))
    same = torch.equal(case.keys[0], mate.keys[0]) and torch.equal(case.query[0], mate.query[0])
    assert torch.equal(alone, beside) == same


def test_large_scores(ops: TritonOps) -> None:
    """Scores in the hundreds overflow nothing: attention goes to the best key."""
    check(ops, make_case(ops, Heads(2, 1, 64), [(1, 50), (1, 3)], block_size=16), AttentionForm(40.0))


def test_stale_slot_shows(ops: TritonOps) -> None:
    """A NaN inside the context is not hidden, in one split or in several, in decodes or in chunks."""
    nothing = torch.full((1, 1, 64), float("nan"), dtype=ops.dtype)
    for sequences in ([(1, 40)], [(1, 600)], [(3, 40)]):
        case = make_case(ops, Heads(2, 1, 64), sequences, block_size=16)
        slot = case.batch.block_table[case.batch.rows[0], 1].long() * 16 + 3
        ops.kv_write(nothing, nothing, case.pages, slot[None])
        assert ops.paged_attention(case.query, case.pages, case.batch, FORM).isnan().all()


def test_negative_slot_writes_nothing(ops: TritonOps) -> None:
    """Slot -1 leaves the pages as they were; its neighbours in the call are written."""
    case = make_case(ops, Heads(2, 2, 64), [(1, 20)], block_size=16)
    before = case.pages.data.clone()
    key = torch.randn(3, 2, 64).to(ops.dtype)
    slots = torch.tensor([-1, int(case.batch.block_table[case.batch.rows[0], 0]) * 16 + 2, -1])
    ops.kv_write(key, key, case.pages, slots)
    changed = (case.pages.data.nan_to_num(7.0) != before.nan_to_num(7.0)).nonzero()
    assert set(changed[:, 0].tolist()) == {int(slots[1]) // 16}
    assert len(changed) <= 2 * 2 * 64


@pytest.mark.parametrize(("queries", "kv", "dim"), [(3, 1, 64), (4, 4, 80), (9, 3, 96), (16, 1, 128), (2, 2, 256)])
def test_fused_rope_and_write(ops: TritonOps, queries: int, kv: int, dim: int) -> None:
    """The fused pass turns queries and stores keys and values exactly as rope and then a write do."""
    plain = ReferenceOps(CPU, ops.dtype)
    shape = PageShape(num_layers=1, num_blocks=4, block_size=8, num_kv_heads=kv, head_dim=dim)
    heads = torch.randn(6, queries + 2 * kv, dim).to(ops.dtype)
    angles = torch.rand(50, dim // 2)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.tensor([0, 3, 49, 7, 8, 9], dtype=torch.int32)
    slots = torch.tensor([5, -1, 31, 0, 16, 17])
    results = []
    for one in (ops, plain):
        turned, pages = heads.clone(), one.empty_pages(shape)
        pages.data.zero_()
        one.rope_kv_write(turned, table, positions, pages.layers[0], slots)
        results.append((turned[:, :queries], pages.data))
    for found, exact in zip(*results, strict=True):
        assert_close(found, exact.double())


@pytest.mark.parametrize("dim", [2, 64, 576, 1000])
def test_rms_norm(ops: TritonOps, dim: int) -> None:
    """Rows are normalised, with the residual added in place, and strided heads without one."""
    plain = ReferenceOps(CPU, torch.float32)
    x, residual, weight = torch.randn(3, dim), torch.randn(3, dim), torch.randn(dim)
    x, residual, weight = (one.to(ops.dtype) for one in (x, residual, weight))
    summed = residual.clone()
    found = ops.rms_norm(x, weight, eps=1e-5, residual=summed)
    assert torch.equal(summed, residual + x)
    assert_close(found, plain.rms_norm((residual + x).float(), weight.float(), eps=1e-5).double())
    heads = torch.randn(2, 5, dim).to(ops.dtype)[:, 1:3]
    assert_close(
        ops.rms_norm(heads, weight, eps=1e-5), plain.rms_norm(heads.float(), weight.float(), eps=1e-5).double()
    )


def test_rope_and_gates(ops: TritonOps) -> None:
    """Rotation in place, silu(gate) * up and gelu(gate) * up are right for odd sizes."""
    plain = ReferenceOps(CPU, torch.float32)
    angles = torch.rand(20, 40)
    table, positions = torch.cat((angles.cos(), angles.sin()), -1), torch.tensor([0, 19, 4], dtype=torch.int32)
    heads = torch.randn(3, 13, 80).to(ops.dtype)
    exact = heads.float()
    plain.rope(exact, table, positions)
    ops.rope(heads, table, positions)
    assert_close(heads, exact.double())
    gate_up = torch.randn(3, 2 * 1111).to(ops.dtype)
    assert_close(ops.silu_mul(gate_up), plain.silu_mul(gate_up.float()).double())
    assert_close(ops.gelu_mul(gate_up), plain.gelu_mul(gate_up.float()).double())


def test_empty_batch(ops: TritonOps) -> None:
    """Nothing is done for no tokens and no blocks."""
    assert ops.silu_mul(torch.empty(0, 8, dtype=ops.dtype)).shape == (0, 4)
    pages = _pages(ops)
    assert ops.gather_blocks(pages, torch.empty(0, dtype=torch.int64)).shape == (0, 3, pages.shape.block_elements)


def test_merge_partials(ops: TritonOps) -> None:
    """Parts are weighted by the exponentials of their log-sum-exp; a part of -inf counts nothing, even if it is NaN."""
    parts, lse = torch.randn(3, 2, 2, 80), torch.randn(3, 2, 2)
    lse[1, 0], parts[1, 0] = float("-inf"), float("nan")
    weights = lse.double().softmax(0).unsqueeze(-1)
    exact = (weights * parts.double().nan_to_num()).sum(0)
    assert_close(ops.merge_partials(parts, lse), exact)
    assert_close(ReferenceOps(CPU, ops.dtype).merge_partials(parts, lse), exact)


def _pages(ops: TritonOps) -> Pages:
    shape = PageShape(num_layers=3, num_blocks=7, block_size=4, num_kv_heads=2, head_dim=40)
    pages = ops.empty_pages(shape)
    pages.data.copy_(torch.randn(pages.data.shape))
    return pages


def test_blocks_move(ops: TritonOps) -> None:
    """Blocks gathered into slabs, scattered elsewhere and copied arrive bit by bit, NaN included."""
    pages = _pages(ops)
    pages.data[1, 4, 3] = float("nan")
    before = pages.data.clone().view(torch.int16 if ops.dtype == torch.float16 else torch.int32)
    slabs = ops.gather_blocks(pages, torch.tensor([4, 0]))
    ops.scatter_blocks(slabs, pages, torch.tensor([2, 6]))
    ops.copy_blocks(pages, torch.tensor([5, 3]), torch.tensor([0, 1]))
    after = pages.data.view(before.dtype)
    for target, source in ((2, 4), (6, 0), (0, 5), (1, 3), (3, 3), (4, 4), (5, 5)):
        assert torch.equal(after[:, target], before[:, source])


def test_slabs_in_place(ops: TritonOps) -> None:
    """Blocks go to the places of an arena that are named and come back from there, all layers or some, by any number of
    programs.
    """
    shape = PageShape(num_layers=3, num_blocks=70, block_size=4, num_kv_heads=2, head_dim=24)
    pages, other = ops.empty_pages(shape), ops.empty_pages(shape)
    pages.data.normal_()
    other.data.normal_()
    arena = torch.randn(80, 3, shape.block_elements).to(ops.dtype)
    blocks, places, target = torch.randperm(70)[:66], torch.randperm(80)[:66], torch.randperm(70)[:66]
    held, expected = arena.clone(), other.data.clone()
    held[places, :2] = pages.data[:2, blocks].transpose(0, 1)
    expected[2:, target] = held[places, 2:].transpose(0, 1)
    assert ops.gather_blocks(pages.part(0, 2), blocks, out=arena[:, :2], places=places).shape == (80, 2, 384)
    assert torch.equal(arena, held)
    ops.scatter_blocks(arena[:, 2:], other.part(2, 3), target, places=places)
    assert torch.equal(other.data, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_the_reference_s(ops: TritonOps, kind: str) -> None:
    """Rows of every kind are drawn as sorting and summing them does, in one block of tokens and in several."""
    for vocab, rows in ((1, 3), (300, 9), (4097, 8)):
        logits, how = make(kind, vocab, ops, rows), ways(rows, seed=vocab)
        assert torch.equal(ops.sample(logits, how), ReferenceOps(CPU, ops.dtype).sample(logits, how))


def test_masks(ops: TritonOps) -> None:
    """The bits of each named row, in one block of tokens and in several."""
    for vocab in (1, 31, 300, 9001):
        rows = torch.tensor([4, 0, 2])
        allowed, words = masks(len(rows), vocab)
        for logits in (make("peaked", vocab, ops, rows=5), make("peaked", vocab, ops, rows=5).float()):
            expected = logits.clone()
            expected[rows] = expected[rows].masked_fill(~allowed, -torch.inf)
            ops.mask(logits, rows, words)
            assert torch.equal(logits, expected)


def test_draws_take_no_notice_of_nan(ops: TritonOps) -> None:
    """A row whose best logit isn't finite gives its first best token, a NaN before all else."""
    logits = make("peaked", 300, ops, rows=3)
    logits[0, [299, 7]], logits[1, 30], logits[2] = -torch.nan, torch.inf, -torch.inf
    how = torch.tensor([[1.0, 0.0, 1.0, 0.5, -1.0]] * 3, dtype=torch.float64)
    assert ops.sample(logits, how).tolist() == [7, 30, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_reductions_of_logits(ops: TritonOps, kind: str) -> None:
    """The first best, the k best and log-probabilities, of all rows or of named ones, are what sorting gives."""
    for vocab in (1, 64, 65, 3001):
        logits = make(kind, vocab, ops, rows=4)
        exact, order = logits.float().sort(dim=-1, descending=True, stable=True)
        assert torch.equal(ops.argmax(logits), order[:, 0])
        rows = torch.tensor([2, 0])
        for k in {0, 1, min(vocab, 20), vocab}:
            values, tokens = ops.top_k(logits, k)
            assert torch.equal(values, exact[:, :k])
            assert torch.equal(tokens, order[:, :k])
            assert torch.equal(ops.top_k(logits, k, rows)[1], order[rows, :k])
        logprobs = logits.double().log_softmax(-1).gather(-1, order)
        found = ops.logprobs(logits, order)
        torch.testing.assert_close(found.double(), logprobs, atol=1e-4, rtol=1e-4, equal_nan=True)
        assert torch.equal(ops.logprobs(logits, order[rows], rows).nan_to_num(9.0), found[rows].nan_to_num(9.0))
