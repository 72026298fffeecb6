"""Log-probabilities: the model's own distribution, ranked without chance, never a batch mate's business."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine.model.asked import Asked, Values, asked_of, read_answers
from engine.model.logprobs import (
    PromptAsking,
    asking,
    prompt_asking,
    prompt_scores,
    read,
    rows_at_once,
    sampled_scores,
)
from engine.request import SamplingParams, SequenceId
from engine.step import SequenceStep, StepOptions, TokenLogprobs
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


def send(*arrays: "np.ndarray[Any, Any]") -> tuple[torch.Tensor, ...]:
    """Bring arrays to where the host is, too."""
    return tuple(map(torch.from_numpy, arrays))


def send_to(device: torch.device) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return what brings arrays to a device."""
    return lambda *arrays: tuple(one.to(device) for one in send(*arrays))


def measure(
    ops: Ops, logits: torch.Tensor, counts: list[int], tokens: torch.Tensor
) -> tuple[TokenLogprobs | None, ...]:
    """Return what rows that ask for so many get, and check that the tokens travel unharmed."""
    asked = Asked(asking([part(count) for count in counts]))
    values = Values(tokens, sampled_scores(tokens, logits, asked.scores, ops, send) if asked.scores else None)
    answers = read_answers(values.packed().tolist(), values.sizes, asked)
    assert answers.token_ids == tuple(tokens.tolist())
    return answers.logprobs


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
            found = sampled_scores(tokens, logits, rows, ops, send_to(meta))
            assert found.is_meta and found.shape == (len(rows), 1 + 2 * max(counts))
        asked = [PromptAsking(SequenceId(1), 0, (3, 4), 2), PromptAsking(SequenceId(2), 4, (5,), 0)]
        hidden = torch.empty((6, 8), device=meta)
        found = prompt_scores(hidden, lambda rows: rows.new_empty((len(rows), 500)), asked, 2, ops, send_to(meta))
        assert found.is_meta and found.shape == (3, 5)


def chunk(start: int, token_ids: list[int], num_prompt: int, follower: int = -1, count: int = 2) -> SequenceStep:
    """Return a chunk whose prompt's log-probabilities are asked for; `follower`: the prompt's token behind it."""
    options = StepOptions(num_prompt=num_prompt, prompt_logprobs=count, prompt_next=follower)
    return SequenceStep(SequenceId(7), 0, start, token_ids, None, options=options)


@pytest.mark.parametrize(
    ("part", "followers"),
    [
        (chunk(0, [10, 11, 12], 8, follower=13), [11, 12, 13]),
        (chunk(3, [13, 14, 15], 6), [14, 15]),
        (chunk(3, [13, 14, 15, 90, 91], 6), [14, 15]),
        (chunk(2, [12], 8, follower=13), [13]),
    ],
    ids=["within the prompt", "its end", "tokens that were sampled behind it", "a single token"],
)
def test_each_token_of_the_prompt_is_scored_by_the_one_before_it(part: SequenceStep, followers: list[int]) -> None:
    """What follows the chunk's tokens in the prompt is scored; what has been sampled behind the prompt is not."""
    asked = prompt_asking(part, 40)
    assert asked is not None
    assert (asked.first, list(asked.followers), asked.num_best) == (40, followers, 2)
    assert prompt_asking(part._replace(options=StepOptions(num_prompt=9)), 40) is None
    assert prompt_asking(part._replace(options=None), 40) is None


@pytest.mark.parametrize("num_rows", [1, 3, 1000])
def test_prompts_are_scored_a_few_rows_at_a_time(ops: Ops, num_rows: int) -> None:
    """However few logits there are at once, each place has what the whole softmax says; no head sees more rows."""
    weight = torch.randn(16, 300, generator=torch.Generator().manual_seed(5))
    hidden = torch.randn(20, 16, generator=torch.Generator().manual_seed(6))
    truth = (hidden @ weight).double().log_softmax(-1)
    asked = [PromptAsking(SequenceId(1), 2, (5, 6, 7, 8), 3), PromptAsking(SequenceId(2), 11, (299, 0), 1)]
    seen: list[int] = []

    def head(rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return rows @ weight

    found = read(prompt_scores(hidden, head, asked, num_rows, ops, send).flatten().tolist(), [3] * 4 + [1] * 2)
    assert max(seen) <= num_rows and sum(seen) == 6
    for one, place, token, count in zip(
        found, [2, 3, 4, 5, 11, 12], [5, 6, 7, 8, 299, 0], [3] * 4 + [1] * 2, strict=True
    ):
        assert one.chosen == pytest.approx(float(truth[place, token]), abs=1e-4)
        best = truth[place].sort(descending=True, stable=True)
        assert [token for token, _ in one.top] == best.indices[:count].tolist()


def test_logits_of_a_prompt_take_bounded_memory() -> None:
    """A vocabulary of any size leaves at least one row, and never more than 64 MiB of them."""
    for vocab in (1, 384, 49_152, 262_144, 1 << 30):
        rows = rows_at_once(vocab)
        assert rows == 1 or rows * vocab * 4 <= 64 << 20


def test_everything_travels_in_one_piece() -> None:
    """Tokens, their scores, those of prompts and means come apart as they were put together, whoever asked."""
    scoring = part(1)
    pooling = SequenceStep(SequenceId(9), 3, 0, [1, 2], None, options=StepOptions(num_prompt=2, pool=True))
    unfinished = SequenceStep(SequenceId(8), 4, 0, [1, 2], None, options=StepOptions(num_prompt=5, pool=True))
    parts = [part(-1), scoring, chunk(0, [10, 11], 2, count=0), pooling, unfinished]
    asked = asked_of(parts, parts[:2], np.array([0, 1, 2, 4, 6, 8], dtype=np.int32))
    assert asked.needs_hidden and not asked_of(parts[:2], parts[:2], np.array([0, 1, 2], dtype=np.int32)).needs_hidden
    values = Values(
        torch.tensor([4, 5]),
        torch.tensor([[-0.5, -0.25, 77.0]], dtype=torch.float64),
        torch.tensor([[-1.5]], dtype=torch.float64),
        torch.tensor([[0.5, 2.0, 4.0]]),
    )
    answers = read_answers(values.packed().tolist(), values.sizes, asked)
    assert answers.token_ids == (4, 5)
    assert answers.logprobs == (None, TokenLogprobs(-0.5, ((77, -0.25),)))
    assert answers.prompts == {SequenceId(7): (TokenLogprobs(-1.5),)}
    assert answers.means == {SequenceId(9): (0.5, 2.0, 4.0)}
