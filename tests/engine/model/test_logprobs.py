"""Log-probabilities: the model's own distribution, ranked without chance, never a batch mate's business."""

import pytest
import torch

from engine.model.logprobs import asking, read, with_logprobs
from engine.request import SamplingParams, SequenceId
from engine.step import SequenceStep, TokenLogprobs
from kernels.ops import Ops, select_backend
from kernels.reference.ops import ReferenceOps
from kernels.triton_ops.ops import TritonOps


class OnGpu(ReferenceOps):
    """The reductions of the Triton backend, which are torch's, on a device without Triton."""

    top_k = TritonOps.top_k
    logprobs = TritonOps.logprobs


@pytest.fixture(params=["cpu", "reference"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """Who computes: the C++ of the CPU, or torch as on any device."""
    return select_backend(request.param, device=torch.device("cpu"), dtype=torch.bfloat16)


def part(num_logprobs: int) -> SequenceStep:
    """Return a decode that asks for so many."""
    sampling = SamplingParams(num_logprobs=num_logprobs)
    return SequenceStep(sequence=SequenceId(0), row=0, start=0, token_ids=[1], sampling=sampling)


def measure(
    ops: Ops, logits: torch.Tensor, counts: list[int], tokens: torch.Tensor
) -> tuple[TokenLogprobs | None, ...]:
    """Return what rows that ask for so many get, and check that the tokens travel unharmed."""
    rows = asking([part(count) for count in counts])
    token_ids, found = read(with_logprobs(tokens, logits, rows, ops, torch.from_numpy).tolist(), rows, len(counts))
    assert token_ids == tuple(tokens.tolist())
    return found


def coarse(num_rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    """Return logits of few distinct values, zeros of both signs among them, so that most are equal to others."""
    logits = torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2
    logits = logits.round()
    assert vocab < 1000 or bool((logits == 0).any() and (logits.signbit() & (logits == 0)).any())
    return logits


@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 384, 3001, 49152])
@pytest.mark.parametrize("num_best", [0, 1, 5, 20, 64])
def test_the_best_come_first_and_equal_ones_by_id(ops: Ops, vocab: int, num_best: int) -> None:
    """What is reported is the head of a stable sort, also where most logits are equal or the vocabulary is smaller."""
    for logits in (coarse(3, vocab), torch.randn(3, vocab, generator=torch.Generator().manual_seed(1)) * 3):
        found = measure(ops, logits, [num_best] * 3, torch.zeros(3, dtype=torch.int64))
        values, ids = logits.double().log_softmax(-1).sort(dim=-1, descending=True, stable=True)
        for row, one in enumerate(found):
            assert one is not None
            assert [token for token, _ in one.top] == ids[row].tolist()[:num_best]
            assert [value for _, value in one.top] == pytest.approx(values[row].tolist()[:num_best], abs=1e-5)


def test_the_chosen_one_is_reported_wherever_it_ranks(ops: Ops) -> None:
    """A sampled token has its log-probability, be it the best or the worst; a softmax in double precision agrees."""
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(2)) * 5
    tokens = torch.stack([logits[0].argmax(), logits[1].argmin(), torch.tensor(0), torch.tensor(499)])
    truth = logits.double().log_softmax(-1)
    for row, one in enumerate(measure(ops, logits, [2] * 4, tokens)):
        assert one is not None
        assert one.chosen == pytest.approx(float(truth[row, tokens[row]]), abs=1e-5)
    best = measure(ops, logits, [1] * 4, tokens)[0]
    assert best is not None
    assert best.top == ((int(tokens[0]), best.chosen),)


def test_rows_get_what_each_asks_for(ops: Ops) -> None:
    """Some rows ask for many, some for the chosen one alone, some for nothing."""
    logits = coarse(5, 2000)
    found = measure(ops, logits, [3, -1, 64, 0, -1], torch.arange(5))
    assert [None if one is None else len(one.top) for one in found] == [3, None, 64, 0, None]
    for row, one in enumerate(found):
        if one is not None:
            assert one.chosen == pytest.approx(float(logits[row].double().log_softmax(-1)[row]), abs=1e-5)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_batch_mates_change_no_bit(ops: Ops, num_threads: int) -> None:
    """A row in a crowd of others, some of which ask for more, is reported bit for bit as it is alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        logits = torch.randn(17, 49152, generator=torch.Generator().manual_seed(3)).bfloat16().float() * 2
        tokens = torch.arange(17) * 1000
        counts = [(7 * row) % 20 - 1 for row in range(17)]
        together = measure(ops, logits, counts, tokens)
        for row in range(17):
            if counts[row] < 0:
                assert together[row] is None
                continue
            assert measure(ops, logits[row : row + 1], counts[row : row + 1], tokens[row : row + 1]) == (together[row],)
    finally:
        torch.set_num_threads(before)


def test_rows_without_a_token_ask_for_nothing() -> None:
    """A chunk of an unfinished prefill has no distribution to report."""
    assert asking([part(-1)]) == ()
    assert asking([part(0)._replace(sampling=None)]) == ()


def test_nothing_waits_for_the_device() -> None:
    """Where tensors have no values, as those on a GPU have none yet, all of it can still be launched."""
    meta = torch.device("meta")
    logits, tokens = torch.empty((3, 500), device=meta), torch.empty(3, dtype=torch.int64, device=meta)
    for ops in (ReferenceOps(meta, torch.float32), OnGpu(meta, torch.float32)):
        for counts in ([2, -1, 5], [0, 0, 0]):
            rows = asking([part(count) for count in counts])
            found = with_logprobs(tokens, logits, rows, ops, lambda array: torch.from_numpy(array).to(meta))
            assert found.is_meta and found.shape == (3 + len(rows) * (1 + 2 * max(counts)),)
