"""Every Triton kernel on the GPU against a float64 oracle: the first part of `bench.gpu`, which runs it in shares.

    python -m bench.gpu_correct --share 0/8     # every eighth case from the first; one JSON object a line

Several processes share the work because most of it is compiling, on the CPU.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from bench.gpu_limits import device, dtypes
from kernels.batch import AttentionForm
from kernels.ops import Ops, select_backend
from kernels.pages import Pages, PageShape
from kernels.reference.ops import ReferenceOps
from tests.kernels.cases import TOLERANCE, Heads, exact_attention, make_case

Sequences = Sequence[tuple[int, int]]  # query length, context
DECODES: Sequences = ((1, 1), (1, 37), (1, 512), (1, 513), (1, 2100), (1, 9000))
CHUNKS: Sequences = ((5, 5), (1, 1), (4, 41), (19, 700), (257, 900), (512, 512))
MIXED: Sequences = ((1, 530), (1, 5), (20, 45), (1, 33), (300, 1200))
TINY: dict[Sequences, Sequences] = {
    DECODES: ((1, 1), (1, 37), (1, 530)),
    CHUNKS: ((5, 5), (1, 1), (4, 41)),
    MIXED: ((1, 30), (1, 5), (9, 45)),
}
HEADS = ((9, 3, 64), (32, 8, 128), (16, 8, 256), (32, 32, 80), (8, 8, 96), (16, 1, 128), (64, 8, 64))
FORMS = (AttentionForm(0.1), AttentionForm(0.1, 100), AttentionForm(0.1, 0, 30.0), AttentionForm(0.1, 4096, 50.0))


@dataclass(frozen=True, slots=True)
class Finding:
    """How far one case is off: `off` counts tolerances, so that 1 is the most that is right."""

    case: str
    dtype: str
    off: float
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether it is within its tolerance."""
        return not self.problem and self.off <= 1


Check = Callable[[Ops], float]


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the worst element's error in tolerances, absolute and relative together; NaN where either has one."""
    tolerance = TOLERANCE[found.dtype]
    exact = exact.double()
    return float(((found.double() - exact).abs() / (tolerance + tolerance * exact.abs())).max())


def worst(*values: float) -> float:
    """Return the largest; NaN where any is."""
    return float(torch.tensor(values, dtype=torch.float64).max())


def checks(*, tiny: bool) -> Iterator[tuple[str, Check]]:
    """Yield every case by name."""
    heads = HEADS[:1] if tiny else HEADS
    for (query, kv, dim), (index, form) in itertools.product(heads, enumerate(FORMS)):
        if index and (query, kv, dim) not in HEADS[:3]:
            continue
        for name, sequences in (("decode", DECODES), ("chunks", CHUNKS), ("mixed", MIXED)):
            of = Heads(query, kv, dim)
            words = f"window {form.window}, cap {form.soft_cap:g}" if index else "plain"
            yield f"{name} {query}/{kv}/{dim}, {words}", attention(of, TINY[sequences] if tiny else sequences, form)
    for query, kv, dim in heads[:4]:
        yield f"rope_kv_write {query}/{kv}/{dim}", write(query, kv, dim, 6 if tiny else 600)
        yield f"rope {query}/{kv}/{dim}", rope(query, dim, 6 if tiny else 600)
    for dim in (576,) if tiny else (576, 4096, 3584, 1000):
        yield f"rms_norm {dim}", norm(dim, 3 if tiny else 333)
        yield f"gates {dim}", gates(dim, 3 if tiny else 333)
    if not tiny:
        yield "decode and chunks behind 2^31 elements", far
    yield "merge_partials", merge
    for vocab in (4097,) if tiny else (49_152, 151_936):
        yield f"sample, {vocab:,} tokens", draws(vocab)
        yield f"top_k, logprobs, {vocab:,} tokens", best(vocab)
    yield "blocks", blocks


def attention(heads: Heads, sequences: Sequences, form: AttentionForm) -> Check:
    """Return the check of one ragged batch; the leading decodes are counted as the runner counts them."""

    def check(ops: Ops) -> float:
        case = make_case(ops, heads, sequences, block_size=16)
        decodes = len(list(itertools.takewhile(lambda one: one[0] == 1, sequences)))
        batch = replace(case.batch, num_decodes=decodes)
        found = ops.paged_attention(case.query, case.pages, batch, form)
        return off(found, exact_attention(case, form))

    return check


def far(ops: Ops) -> float:
    """Check attention over blocks whose offsets in the pool need more than 31 bits."""
    case = make_case(ops, Heads(32, 8, 128), MIXED, block_size=16)
    near = case.pages.shape
    shape = replace(near, num_blocks=2**31 // near.block_elements + 1 + near.num_blocks)
    pages = ops.empty_pages(shape)
    first = shape.num_blocks - near.num_blocks
    pages.data[0, first:] = case.pages.data
    batch = replace(case.batch, block_table=case.batch.block_table + first, num_decodes=2)
    found = ops.paged_attention(case.query, pages.layers[0], batch, FORMS[0])
    return off(found, exact_attention(case, FORMS[0]))


def write(query: int, kv: int, dim: int, tokens: int) -> Check:
    """Return the check of the fused pass against rope and then a write by the reference; slot -1 writes nothing."""

    def check(ops: Ops) -> float:
        plain = ReferenceOps(ops.device, ops.dtype)
        shape = PageShape(num_layers=1, num_blocks=-(-tokens // 16) + 1, block_size=16, num_kv_heads=kv, head_dim=dim)
        heads = _normal(ops, tokens, query + 2 * kv, dim)
        table, positions = _angles(ops, dim, tokens)
        slots = torch.randperm(tokens, device=ops.device)
        slots[1::7] = -1
        results = []
        for one in (ops, plain):
            turned, pages = heads.clone(), one.empty_pages(shape)
            pages.data.zero_()
            one.rope_kv_write(turned, table, positions, pages.layers[0], slots)
            results.append((turned[:, :query], pages.data))
        return worst(*(off(found, exact) for found, exact in zip(*results, strict=True)))

    return check


def rope(query: int, dim: int, tokens: int) -> Check:
    """Return the check of the rotation."""

    def check(ops: Ops) -> float:
        heads = _normal(ops, tokens, query, dim)
        table, positions = _angles(ops, dim, tokens)
        exact = heads.float()
        ReferenceOps(ops.device, torch.float32).rope(exact, table, positions)
        ops.rope(heads, table, positions)
        return off(heads, exact)

    return check


def norm(dim: int, rows: int) -> Check:
    """Return the check of the norm, with and without a residual."""

    def check(ops: Ops) -> float:
        plain = ReferenceOps(ops.device, torch.float32)
        x, residual, weight = _normal(ops, rows, dim), _normal(ops, rows, dim), _normal(ops, dim)
        summed = residual.clone()
        found = ops.rms_norm(x, weight, eps=1e-5, residual=summed)
        exact = plain.rms_norm((residual + x).float(), weight.float(), eps=1e-5)
        alone = ops.rms_norm(x, weight, eps=1e-5)
        return worst(
            off(found, exact),
            off(summed, residual + x),
            off(alone, plain.rms_norm(x.float(), weight.float(), eps=1e-5)),
        )

    return check


def gates(dim: int, rows: int) -> Check:
    """Return the check of both gates."""

    def check(ops: Ops) -> float:
        plain, gate_up = ReferenceOps(ops.device, torch.float32), _normal(ops, rows, 2 * dim)
        return worst(
            off(ops.silu_mul(gate_up), plain.silu_mul(gate_up.float())),
            off(ops.gelu_mul(gate_up), plain.gelu_mul(gate_up.float())),
        )

    return check


def merge(ops: Ops) -> float:
    """Check the joining of parts, one of which counts nothing and is NaN."""
    parts, lse = torch.randn(3, 7, 4, 80, device=ops.device), torch.randn(3, 7, 4, device=ops.device)
    lse[1, 0], parts[1, 0] = float("-inf"), float("nan")
    exact = (lse.double().softmax(0).unsqueeze(-1) * parts.double().nan_to_num()).sum(0)
    return off(ops.merge_partials(parts, lse), exact)


def draws(vocab: int) -> Check:
    """Return the check of `sample`: a row off is a tolerance, for a draw may fall where two sums round apart."""

    def check(ops: Ops) -> float:
        kinds = itertools.product((0.0, 0.3, 1.0, 5.0), (0, 1, 40), (1.0, 0.9, 0.1))
        how = torch.tensor(list(kinds), dtype=torch.float64, device=ops.device)
        numbers = torch.rand(len(how), 1, dtype=torch.float64, device=ops.device)
        floors = torch.full_like(numbers, -math.inf)
        floors[::2] = -2.0
        how = torch.cat((how, numbers, floors), 1)
        logits = (4 * _normal(ops, len(how), vocab)).contiguous()
        return float((ops.sample(logits, how) != ReferenceOps(ops.device, ops.dtype).sample(logits, how)).sum())

    return check


def best(vocab: int) -> Check:
    """Return the check of `argmax`, `top_k` and `logprobs`, ties included: logits are cut to eighths."""

    def check(ops: Ops) -> float:
        logits = ((32 * torch.randn(5, vocab, device=ops.device)).round() / 8).to(ops.dtype)
        ranked = logits.double().sort(dim=-1, descending=True, stable=True)
        values, tokens = ops.top_k(logits, 20)
        if not torch.equal(tokens, ranked.indices[:, :20]) or not torch.equal(ops.argmax(logits), tokens[:, 0]):
            return float("inf")
        exact = logits.double().log_softmax(-1).gather(-1, tokens)
        return worst(off(values, ranked.values[:, :20]), off(ops.logprobs(logits, tokens), exact))

    return check


def blocks(ops: Ops) -> float:
    """Check that blocks arrive bit by bit: gathered, scattered elsewhere, copied."""
    shape = PageShape(num_layers=3, num_blocks=9, block_size=16, num_kv_heads=2, head_dim=40)
    pages: Pages = ops.empty_pages(shape)
    pages.data.copy_(_normal(ops, *pages.data.shape))
    before = pages.data.clone()
    slabs = ops.gather_blocks(pages, _ids(ops, 4, 0))
    ops.scatter_blocks(slabs, pages, _ids(ops, 2, 6))
    ops.copy_blocks(pages, _ids(ops, 5, 3), _ids(ops, 8, 1))
    pairs = ((2, 4), (6, 0), (8, 5), (1, 3), (3, 3), (4, 4), (5, 5), (7, 7))
    return 0.0 if all(torch.equal(pages.data[:, to], before[:, source]) for to, source in pairs) else float("inf")


def findings(*, tiny: bool, share: int = 0, shares: int = 1) -> Iterator[Finding]:
    """Run this process's share of the cases in every dtype; a case that fails to run is a finding too."""
    for dtype in dtypes(tiny=tiny):
        ops = select_backend("triton", device=device(tiny=tiny), dtype=dtype)
        for name, check in itertools.islice(checks(tiny=tiny), share, None, shares):
            torch.manual_seed(0)
            try:
                most, problem = check(ops), ""
            except Exception as error:  # noqa: BLE001  # whatever a compiler or a driver says, the others still count
                most, problem = float("nan"), f"{type(error).__name__}: {error}"[:300]
            if most != most and not problem:
                problem = "NaN"
            yield Finding(name, str(dtype).removeprefix("torch."), most, problem)


def _normal(ops: Ops, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=ops.device).to(ops.dtype)


def _ids(ops: Ops, *ids: int) -> torch.Tensor:
    return torch.tensor(ids, device=ops.device)


def _angles(ops: Ops, dim: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = 6.28 * torch.rand(4096, dim // 2, device=ops.device)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    return table, torch.randint(4096, (tokens,), device=ops.device, dtype=torch.int32)


def main() -> int:
    """Print this share's findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--share", default="0/1", help="this share of how many")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    share, shares = map(int, options.share.split("/"))
    with torch.inference_mode():
        for finding in findings(tiny=options.tiny, share=share, shares=shares):
            print(json.dumps(asdict(finding)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
