"""Reductions of logits on every backend: the first best, the k best, log-probabilities, and draws, token for token."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from kernels.cpu.ops import CpuOps
from kernels.ops import Ops
from kernels.reference.ops import ReferenceOps
from tests.kernels.conftest import CPU

VOCABS = [1, 2, 63, 64, 65, 300, 4097]
LARGE = 151_936
KINDS = ["peaked", "flat", "ties", "equal", "infinite"]
FREE = (1.0, 0.0, 1.0)  # temperature, top_k, top_p
ALL = -math.inf  # the floor that leaves every token
ROWS = 12


def make(kind: str, vocab: int, ops: Ops, rows: int = ROWS) -> torch.Tensor:
    """Return logits of one shape of distribution, in float32 and the ops' dtype by turns."""
    random = torch.Generator().manual_seed(vocab)
    logits = torch.randn(rows, vocab, generator=random) * {"peaked": 4.0, "flat": 0.1}.get(kind, 3.0)
    if kind == "ties":
        logits = logits.round()  # zeros of both signs among them
    if kind == "equal":
        logits.fill_(-2.5)
    if kind == "infinite":
        logits[torch.rand(logits.shape, generator=random) < 0.5] = -torch.inf
        logits[0] = -torch.inf
    return logits.to(ops.dtype) if vocab % 2 else logits


def ways(rows: int, seed: int = 0) -> torch.Tensor:
    """Return parameters of draws: each temperature with each top_k and top_p, sooner or later."""
    how = torch.empty(rows, 5, dtype=torch.float64)
    for row in range(rows):
        how[row, 0] = (0.7, 1.0, 1.5, 0.0, 1e-7, 1e30)[(row + seed) % 6]
        how[row, 1] = (0, 50, 0, 1, 700, 0, 10**6)[(row + seed) % 7]
        how[row, 2] = (1.0, 0.9, 0.5, 0.999, 0.0)[(row + seed) % 5]
        how[row, 4] = (ALL, math.log(0.05), ALL, math.log(0.7), 0.0, ALL, -60.0, ALL)[(row + seed) % 8]
    how[:, 3] = torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return how


@pytest.mark.parametrize("kind", KINDS)
def test_argmax(ops: Ops, kind: str) -> None:
    """The first of the best tokens is taken; of nothing but -inf, the first token."""
    for vocab in (*VOCABS, LARGE):
        logits = make(kind, vocab, ops, rows=3)
        assert ops.argmax(logits).tolist() == [row.index(max(row)) for row in logits.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_top_k(ops: Ops, kind: str) -> None:
    """The best come first, equal ones by token, for any k up to the whole vocabulary."""
    for vocab in VOCABS:
        logits = make(kind, vocab, ops, rows=3)
        exact, order = logits.float().sort(dim=-1, descending=True, stable=True)
        for k in {0, 1, 20, 100, 700, vocab}:
            if k <= vocab:
                values, tokens = ops.top_k(logits, k)
                assert torch.equal(tokens, order[:, :k])
                assert torch.equal(values, exact[:, :k])


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs(ops: Ops, kind: str) -> None:
    """They are the log-softmax, of tokens of any rank and of -inf too."""
    for vocab in VOCABS:
        logits = make(kind, vocab, ops)[1:]
        tokens = torch.randint(vocab, (ROWS - 1, 5), generator=torch.Generator().manual_seed(1))
        exact = logits.double().log_softmax(-1).gather(-1, tokens)
        torch.testing.assert_close(ops.logprobs(logits, tokens).double(), exact, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_named_rows(ops: Ops) -> None:
    """Rows may be named, in any order and twice."""
    logits = make("ties", 4097, ops)
    rows = torch.tensor([7, 0, 7])
    tokens = torch.tensor([[3], [5], [4000]])
    for found, expected in zip(ops.top_k(logits, 9, rows), ops.top_k(logits[rows], 9), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(ops.logprobs(logits, tokens, rows), ops.logprobs(logits[rows], tokens))


def test_nan_is_greatest(ops: Ops) -> None:
    """As in torch a NaN, of either sign, is greater than infinity; such a row isn't drawn, its log-softmax is NaN."""
    logits = make("peaked", 4097, ops, rows=4)
    logits[0, 4096], logits[1, [70, 69]], logits[2, 300] = -torch.nan, torch.nan, torch.inf
    logits[1, 3] = torch.inf
    assert ops.argmax(logits)[:3].tolist() == [4096, 69, 300]
    values, tokens = ops.top_k(logits, 3)
    assert tokens[1].tolist() == [69, 70, 3]
    assert tokens[0, 0] == 4096 and values[0, 0].isnan() and not values[0, 1:].isnan().any()
    assert tokens[2, 0] == 300 and values[2, 0] == torch.inf
    how = torch.tensor([[*FREE, 0.5, ALL], [*FREE, 0.5, ALL], [*FREE, 0.5, -1.0], [*FREE, 0.5, ALL]]).double()
    assert ops.sample(logits, how)[:3].tolist() == [4096, 69, 300]
    assert ops.logprobs(logits, tokens)[:3].isnan().all(-1).tolist() == [True, True, True]


@cache
def sorted_draws(kind: str, vocab: int, dtype: torch.dtype, rows: int) -> torch.Tensor:
    """Return what the reference draws."""
    plain = ReferenceOps(CPU, dtype)
    return plain.sample(make(kind, vocab, plain, rows), ways(rows, seed=vocab))


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_the_reference_s(ops: Ops, kind: str) -> None:
    """Every backend draws the token that sorting and summing whole rows in float64 does."""
    for vocab in (*VOCABS, LARGE):
        rows = ROWS if vocab == LARGE else 7 * ROWS
        found = ops.sample(make(kind, vocab, ops, rows), ways(rows, seed=vocab))
        assert torch.equal(found, sorted_draws(kind, vocab, ops.dtype, rows)), vocab


def exact_share(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float = 0.0) -> torch.Tensor:
    """Return the distribution of a draw, one token at a time, in float64."""
    weights = ((logits.double() - logits.double().max()) / temperature).exp()
    order = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))[: top_k or len(logits)]
    total, before = float(weights[order].sum()), 0.0
    share = torch.zeros_like(weights)
    for rank, token in enumerate(order):
        if rank and top_p < 1 and before >= top_p * total:
            break
        share[token] = weights[token] if weights[token] >= min_p else 0.0
        before += float(weights[token])
    return share / share.sum()


@pytest.mark.parametrize("kind", ["peaked", "flat", "ties"])
@pytest.mark.parametrize("min_p", [0.0, 0.03, 0.9])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (7, 1.0), (0, 0.6), (150, 0.8), (299, 0.01)])
def test_numbers_walk_through_the_distribution(ops: Ops, kind: str, top_k: int, top_p: float, min_p: float) -> None:
    """Numbers from 0 to 1 give tokens in the order of ids, each over as much of the way as is its share."""
    logits = make(kind, 300, ops, rows=1)
    floor = math.log(min_p) if min_p else ALL
    how = torch.tensor([[0.8, top_k, top_p, 0.0, floor]], dtype=torch.float64).repeat(4000, 1)
    how[:, 3] = (torch.arange(4000) + 0.5) / 4000
    tokens = ops.sample(logits.expand(4000, -1), how)
    assert bool((tokens.diff() >= 0).all())
    found = torch.bincount(tokens, minlength=300) / 4000
    torch.testing.assert_close(found.double(), exact_share(logits[0], 0.8, top_k, top_p, min_p), atol=1 / 3000, rtol=0)


def test_ends_of_the_numbers(ops: Ops) -> None:
    """The number 0 gives the first token that has a weight, one just under 1 the last."""
    logits = make("flat", 4097, ops, rows=1)
    logits[0, :300], logits[0, -70:] = -torch.inf, -torch.inf
    for top_k, top_p, floor in ((0.0, 1.0, ALL), (4000.0, 1.0, ALL), (0.0, 0.9999999, ALL), (0.0, 1.0, -2.0)):
        ends = [[1.0, top_k, top_p, number, floor] for number in (0.0, 1 - 2**-53)]
        how = torch.tensor(ends, dtype=torch.float64)
        assert ops.sample(logits.expand(2, -1), how).tolist() == [300, 4097 - 71]


@pytest.mark.parametrize(("vocab", "rows"), [(4097, 66), (270_001, 3)])
def test_rows_ignore_batch_mates(ops: Ops, vocab: int, rows: int) -> None:
    """Rows of a mixed batch give what they give alone, to the bit, with any number of threads."""
    logits, how = make("ties", vocab, ops, rows), ways(rows, seed=1)
    tokens = torch.arange(rows)[:, None] * 17
    before = torch.get_num_threads()
    drawn, best, logprobs = ops.sample(logits, how), ops.top_k(logits, 30)[1], ops.logprobs(logits, tokens)
    try:
        for threads, row in ((threads, row) for threads in (1, 2, 5) for row in range(0, rows, 13)):
            torch.set_num_threads(threads)
            one = slice(row, row + 1)
            assert torch.equal(ops.sample(logits[one], how[one]), drawn[one])
            assert torch.equal(ops.argmax(logits[one]), best[one, 0])
            assert torch.equal(ops.top_k(logits[one], 30)[1], best[one])
            if not isinstance(ops, ReferenceOps):  # whose softmax is torch's
                assert torch.equal(ops.logprobs(logits[one], tokens[one]), logprobs[one])
    finally:
        torch.set_num_threads(before)


def test_best_of_zero(ops: Ops) -> None:
    """Where the best logit is zero, draws end as they should, also where the smallest numbers are taken for zero."""
    logits = -torch.rand(2, 4097, generator=torch.Generator().manual_seed(2)).to(ops.dtype)
    logits[:, 4000], logits[1, 50] = -0.0, 0.0
    how = torch.tensor([[1.0, 1.0, 1.0, 0.5, ALL], [1.0, 0.0, 1e-9, 0.5, ALL]], dtype=torch.float64)
    only = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    try:
        assert torch.set_flush_denormal(True) or not isinstance(ops, CpuOps)
        assert ops.sample(logits, how).tolist() == [4000, 50]
        assert ops.sample(logits, only).tolist() == [4000, 50]
        assert ops.top_k(logits, 2)[1].tolist()[1] == [50, 4000]
    finally:
        torch.set_flush_denormal(False)


def test_min_p_counts_from_what_is_best(ops: Ops) -> None:
    """Tokens as good as the floor are drawn, those under it never, whatever all others weigh together."""
    logits = torch.full((1, 4097), -1.0)
    logits[0, [40, 3000]], logits[0, 7] = 0.0, -0.25
    for floor, tokens in ((0.0, {40, 3000}), (-0.25, {7, 40, 3000}), (-0.2, {40, 3000})):
        for top_k, top_p in ((0.0, 1.0), (2000.0, 1.0), (0.0, 0.99)):
            how = torch.tensor([[1.0, top_k, top_p, 0.0, floor]], dtype=torch.float64).repeat(64, 1)
            how[:, 3] = torch.arange(64) / 64
            assert set(ops.sample(logits.expand(64, -1), how).tolist()) == tokens


def masks(rows: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random bits `[rows, vocab]`, all and none of them in the first two, and the words that hold them."""
    allowed = torch.rand(rows, vocab, generator=torch.Generator().manual_seed(vocab)) < 0.5
    allowed[0], allowed[1] = True, False
    allowed[2, 64:128], allowed[2, 128:200] = True, False  # whole words of one kind, beside others
    bits = torch.zeros(rows, -(-vocab // 32) * 32, dtype=torch.uint8)
    bits[:, :vocab] = allowed
    words = np.packbits(bits.numpy(), axis=1, bitorder="little").view(np.int32)
    return allowed, torch.from_numpy(words)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 300, 4097, LARGE])
def test_masks(ops: Ops, vocab: int) -> None:
    """Bit by bit, in the rows that are named alone, in any order."""
    rows = torch.tensor([5, 0, 3, 2])
    allowed, words = masks(len(rows), vocab)
    for logits in (make("peaked", vocab, ops, rows=6), make("peaked", vocab, ops, rows=6).float()):
        expected = logits.clone()
        expected[rows] = expected[rows].masked_fill(~allowed, -torch.inf)
        ops.mask(logits, rows, words)
        assert torch.equal(logits, expected)


def test_nothing_to_do(ops: Ops) -> None:
    """A step that samples nothing gets nothing."""
    logits = torch.empty(0, 300)
    assert ops.argmax(logits).shape == (0,)
    assert ops.sample(logits, torch.empty(0, 5, dtype=torch.float64)).shape == (0,)
    assert ops.top_k(logits, 5)[1].shape == (0, 5)
    assert ops.logprobs(logits, torch.empty(0, 2, dtype=torch.int64)).shape == (0, 2)


def test_logits_stay_as_they_are(ops: Ops) -> None:
    """Nothing is written to what others read next."""
    logits = make("peaked", 4097, ops)
    before = logits.clone()
    ops.sample(logits, ways(ROWS))
    ops.top_k(logits, 700)
    assert torch.equal(logits, before)
