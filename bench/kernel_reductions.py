"""The reductions of logits, and the joining of attention's parts, of `bench.kernels`, beside torch."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import torch

from bench.bandwidth import Limits, seconds_each
from bench.report import Row, medians, samples_of, take_turns
from kernels.ops import Ops
from kernels.reference.ops import ReferenceOps

SHAPES = ((1, 49_152), (32, 49_152), (8, 151_936))  # rows, vocabulary
SETS = 24  # of inputs, taken in turn
BEST, TOP_K, TOP_P = 5, 50, 0.9
PARTS, TOKENS, HEADS, DIM = 4, 256, 9, 64
GIGA, MICRO = 1e9, 1e-6

Call = Callable[[int], object]  # by the number of a set
Case = tuple[str, int, Call, Call, int]  # name, rows, ours, torch's, bytes of the logits or parts
Result = tuple[list[Row], list[dict[str, object]]]


def reduction_rows(ops: Ops, limits: Limits, repeats: int) -> Result:
    """Measure GB/s of logits, as if they were read once; no limit of the machine stands beside them."""
    del limits
    rows: list[Row] = []
    samples: list[dict[str, object]] = []
    cases = chain(*(_logits(ops, count, vocab) for count, vocab in SHAPES), _parts(ops))
    for name, count, ours, theirs, moved in cases:
        sides = {"ours": partial(_bandwidth, ours, moved), "torch": partial(_bandwidth, theirs, moved)}
        found = take_turns(sides, repeats=repeats)
        samples += samples_of(name, found, "GB/s")
        mine, other = medians(found)
        micros = moved / GIGA / mine / count / MICRO
        rows.append(Row(case=name, ours=mine, unit="GB/s", beside=other, note=f"{micros:.1f} us a row"))
    return rows, samples


def _bandwidth(call: Call, moved: int) -> float:
    return moved / seconds_each(call, count=SETS, seconds=0.1) / GIGA


def _logits(ops: Ops, count: int, vocab: int) -> Iterator[Case]:
    logits = [torch.randn(count, vocab).mul_(3).to(ops.dtype) for _ in range(SETS)]
    tokens = torch.zeros((count, BEST), dtype=torch.int64)
    free, best, nucleus = (
        torch.tensor([[1.0, top_k, top_p, 0.7, -math.inf]] * count, dtype=torch.float64)
        for top_k, top_p in ((0, 1.0), (TOP_K, 1.0), (0, TOP_P))
    )
    cases: tuple[tuple[str, Call, Call], ...] = (
        ("argmax", lambda n: ops.argmax(logits[n]), lambda n: logits[n].float().numpy().argmax(-1)),
        (f"top_k, {BEST}", lambda n: ops.top_k(logits[n], BEST), lambda n: logits[n].topk(BEST)),
        ("logprobs", lambda n: ops.logprobs(logits[n], tokens), lambda n: _logprobs(logits[n], tokens)),
        ("sample", lambda n: ops.sample(logits[n], free), lambda n: _free(logits[n])),
        (f"sample, top_k {TOP_K}", lambda n: ops.sample(logits[n], best), lambda n: _best(logits[n])),
        (f"sample, top_p {TOP_P}", lambda n: ops.sample(logits[n], nucleus), lambda n: _nucleus(logits[n])),
    )
    for name, ours, theirs in cases:
        yield f"{name}: {count} × {vocab:,}", count, ours, theirs, logits[0].nbytes


def _parts(ops: Ops) -> Iterator[Case]:
    plain = ReferenceOps(ops.device, ops.dtype)
    parts = [torch.randn(PARTS, TOKENS, HEADS, DIM).to(ops.dtype) for _ in range(SETS)]
    lse = torch.randn(PARTS, TOKENS, HEADS)
    moved = parts[0].nbytes * (PARTS + 1) // PARTS
    name = f"merge_partials: {PARTS} × {TOKENS} tokens"
    ours, theirs = (lambda n: ops.merge_partials(parts[n], lse)), (lambda n: plain.merge_partials(parts[n], lse))
    yield name, TOKENS, ours, theirs, moved


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1).gather(-1, tokens)


def _free(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().softmax(-1).multinomial(1)


def _best(logits: torch.Tensor) -> torch.Tensor:
    values, tokens = logits.float().topk(TOP_K)
    return tokens.gather(-1, values.softmax(-1).multinomial(1))


def _nucleus(logits: torch.Tensor) -> torch.Tensor:
    values, tokens = logits.float().sort(descending=True)
    weights = values.softmax(-1)
    weights[weights.cumsum(-1) - weights >= TOP_P] = 0.0
    return tokens.gather(-1, weights.multinomial(1))
