"""Bias, penalties, bans and masks: on every backend the token is that of plain arrays, never a batch mate's affair."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.model.logprobs import asking, read, sampled_scores
from engine.model.sampler import sample, uniform
from engine.model.shaping import ban, shape, shaped
from engine.request import SamplingParams, SequenceId
from engine.scheduler.history import History, Start
from engine.step import SequenceStep, StepOptions
from kernels.ops import Ops, select_backend
from kernels.reference.ops import ReferenceOps
from tests.engine import shaping_reference
from tests.engine.shaping_reference import drawn

CPU = torch.device("cpu")
BACKENDS = ["cpu", "reference", "triton"]
PLAIN = ReferenceOps(CPU, torch.float32)
VOCAB = 77  # no multiple of a word of a mask


@pytest.fixture(params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Ops:
    """Who computes: the C++ of the CPU, torch, or Triton in its interpreter."""
    return select_backend(request.param, device=CPU, dtype=torch.float32)


class Asked(NamedTuple):
    """A row: what its request asks for, and how far it has come."""

    sampling: SamplingParams
    prompt: Sequence[int] = (1,)
    output: Sequence[int] = ()
    stop_ids: frozenset[int] = frozenset()
    mask: np.ndarray | None = None
    key: int = 5

    def step(self) -> SequenceStep:
        """Return its part of a step."""
        is_early = len(self.output) < self.sampling.min_tokens
        changes = History(self.sampling, Start.of(self.sampling, self.prompt)).changes([*self.prompt, *self.output])
        options = StepOptions(changes=changes, banned=self.stop_ids if is_early else frozenset(), mask=self.mask)
        is_plain = changes is None and self.mask is None and not options.banned
        return SequenceStep(
            sequence=SequenceId(0),
            row=0,
            start=0,
            token_ids=[1],
            sampling=self.sampling,
            position=len(self.output),
            random_key=self.key,
            options=None if is_plain else options,
        )

    @property
    def may_be_overwritten(self) -> bool:
        """Say whether all that happens to its logits is -inf, and nobody reads them afterwards."""
        options = self.step().options
        return options is not None and options.changes is None and self.sampling.num_logprobs < 0

    def logits(self, logits: torch.Tensor) -> np.ndarray:
        """Return what it is chosen from, by hand."""
        asked = (self.sampling, self.prompt, self.output)
        return shaping_reference.shape(logits.float().numpy(), *asked, stop_ids=self.stop_ids, mask=self.mask)

    def token(self, logits: torch.Tensor) -> int:
        """Return the token, by hand."""
        return drawn(self.logits(logits), self.sampling, uniform(self.key, len(self.output)))


def send(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Bring arrays to the CPU."""
    return tuple(map(torch.from_numpy, arrays))


def mask_of(tokens: Sequence[int], vocab: int = VOCAB) -> np.ndarray:
    """Return a mask that allows these."""
    bits = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


TOKENS = st.integers(0, VOCAB - 1)
PENALTIES = st.sampled_from((0.0, 0.0, 0.25, -1.5, 2.0))
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 0.0, 0.7, 1.0, 3.0)),
    top_k=st.sampled_from((0, 0, 1, 9)),
    top_p=st.sampled_from((1.0, 1.0, 0.85)),
    min_p=st.sampled_from((0.0, 0.0, 0.11, 1.0)),
    min_tokens=st.integers(0, 4),
    num_logprobs=st.sampled_from((-1, -1, 0, 3)),
    frequency_penalty=PENALTIES,
    presence_penalty=PENALTIES,
    repetition_penalty=st.sampled_from((1.0, 1.0, 1.3, 0.5, 10.0)),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from((-100.0, -2.5, 3.0, 100.0)), max_size=4).map(
        lambda bias: tuple(bias.items())
    ),
)
ASKED = st.builds(
    Asked,
    sampling=SAMPLINGS,
    prompt=st.lists(TOKENS, min_size=1, max_size=8),
    output=st.lists(TOKENS, max_size=8),
    stop_ids=st.frozensets(st.integers(0, VOCAB + 5), max_size=3),
    mask=st.none() | st.sets(TOKENS, min_size=8).map(lambda tokens: mask_of(sorted(tokens))),
    key=st.integers(0, 2**64 - 1),
)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40)
@given(rows=st.lists(ASKED, min_size=1, max_size=6), seed=st.integers(0, 999), is_coarse=st.booleans())
def test_tokens_are_those_of_plain_arrays(backend: str, rows: list[Asked], seed: int, is_coarse: bool) -> None:
    """Whatever each row of a batch asks for, its token is the one worked out for it alone, token id by token id.

    Logits that somebody reads afterwards are as the model left them.
    """
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    if is_coarse:
        logits = logits.round()  # many are equal
    ops = select_backend(backend, device=CPU, dtype=torch.float32)  # type: ignore[arg-type]
    before = logits.clone()
    tokens = sample(logits, [one.step() for one in rows], ops, send)
    assert tokens.tolist() == [one.token(row) for one, row in zip(rows, before, strict=True)]
    for one, row, was in zip(rows, logits, before, strict=True):
        if one.may_be_overwritten:
            assert row.tolist() == one.logits(was).tolist()
        else:
            assert torch.equal(row, was)


@given(rows=st.lists(ASKED, min_size=1, max_size=5), seed=st.integers(0, 999))
def test_logits_are_those_of_plain_arrays(rows: list[Asked], seed: int) -> None:
    """To the bit, from bfloat16 too, and for the rows that ask alone."""
    logits = (torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 2).bfloat16()
    parts = [one.step() for one in rows]
    before = logits.clone()
    banned, copied = shaped(parts)
    assert sorted([*banned, *copied]) == [row for row, part in enumerate(parts) if part.options is not None]
    assert banned == [row for row, one in enumerate(rows) if one.may_be_overwritten]
    if banned:
        ban(logits, parts, banned, PLAIN, send)
    if copied:
        there, own = shape(logits, parts, copied, PLAIN, send)
        assert there.tolist() == copied
        assert own.dtype == torch.float32
        for found, row in zip(own, copied, strict=True):
            assert found.tolist() == rows[row].logits(before[row]).tolist()
    for row, one in enumerate(rows):
        found = one.logits(before[row]) if row in banned else before[row]
        assert logits[row].tolist() == found.tolist()


def test_batch_mates_change_nothing(ops: Ops) -> None:
    """Each row of a mixed batch gives what it gives alone."""
    count = 24
    rows = [
        Asked(
            SamplingParams(
                temperature=0.9 * (row % 2),
                top_p=(1.0, 0.9)[row // 2 % 2],
                min_p=(0.0, 0.05, 0.0)[row % 3],
                frequency_penalty=(0.0, 0.7, -1.0, 0.0)[row % 4],
                repetition_penalty=(1.0, 1.2)[row // 4 % 2],
                logit_bias=((row, 4.0),) if row % 5 == 0 else (),
            ),
            prompt=list(range(row + 1)),
            output=[row, row, 3],
            mask=mask_of(range(row % 7, VOCAB, 2)) if row % 6 == 1 else None,
            key=row * row,
        )
        for row in range(count)
    ]
    logits = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(6))
    together = sample(logits, [one.step() for one in rows], ops, send)
    for row, one in enumerate(rows):
        assert int(sample(logits[row : row + 1], [one.step()], ops, send)) == int(together[row])


def test_a_bias_of_100_decides(ops: Ops) -> None:
    """With 100 a token comes always, with -100 never, at temperature 1."""
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1)).expand(200, -1)
    free = SamplingParams(logit_bias=((9, 100.0),))
    assert set(sample(logits, [Asked(free, key=key).step() for key in range(200)], ops, send).tolist()) == {9}
    never = SamplingParams(logit_bias=((int(logits[0].argmax()), -100.0),))
    found = sample(logits, [Asked(never, key=key).step() for key in range(200)], ops, send).tolist()
    assert int(logits[0].argmax()) not in found


def test_what_is_masked_or_banned_never_comes(ops: Ops) -> None:
    """At a temperature that makes all tokens alike; a stop id beyond the vocabulary is nobody else's token."""
    logits = torch.randn(60, VOCAB, generator=torch.Generator().manual_seed(2))
    allowed = [3, 31, 32, 63, 64, VOCAB - 1]
    hot = SamplingParams(temperature=50.0, min_tokens=1)
    stops = frozenset((3, VOCAB, VOCAB + 1, VOCAB + 64))
    rows = [Asked(hot, stop_ids=stops, mask=mask_of(allowed), key=key) for key in range(59)]
    free = Asked(SamplingParams(temperature=0.0))
    found = sample(logits, [one.step() for one in [*rows, free]], ops, send).tolist()
    assert set(found[:-1]) == set(allowed[1:])
    assert found[-1] == int(logits[-1].argmax())


@pytest.mark.parametrize("words", [1, 2, 3, 5])
def test_a_mask_of_another_width(ops: Ops, words: int) -> None:
    """A model has more logits than its tokenizer tokens, or fewer: what a mask does not name is not allowed."""
    logits = torch.zeros(1, VOCAB)
    logits[0, -1] = 9.0
    mask = np.full(words, 0xFFFF_FFFF, dtype=np.uint32)
    mask[0] = 1 << 31
    (token,) = sample(logits, [Asked(SamplingParams(temperature=0.0), mask=mask).step()], ops, send).tolist()
    assert token == (VOCAB - 1 if words >= 3 else 31)


def test_nothing_left_is_no_nan(ops: Ops) -> None:
    """A row that has no token left gives the first one, be it drawn or not; its neighbours are well."""
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3))
    nothing = np.zeros(3, dtype=np.uint32)
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1)
        rows = [Asked(sampling), Asked(sampling, mask=nothing), Asked(sampling, mask=mask_of([8]))]
        found = sample(logits, [one.step() for one in rows], ops, send).tolist()
        assert found == [rows[0].token(logits[0]), 0, 8]


def test_reported_log_probabilities_are_the_models_own(ops: Ops) -> None:
    """Of a token that a mask forces, the probability that the model had given it."""
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(4))
    asked = Asked(SamplingParams(num_logprobs=2, repetition_penalty=5.0), mask=mask_of([11]))
    parts = [asked.step(), asked.step()]
    rows = asking(parts)
    tokens = sample(logits, parts, ops, send)
    assert tokens.tolist() == [11, 11]
    scores = sampled_scores(tokens, logits, rows, ops, send).flatten().tolist()
    for row, one in enumerate(read(scores, [2, 2])):
        truth = logits[row].double().log_softmax(-1)
        assert one.chosen == pytest.approx(float(truth[11]), abs=1e-5)
        assert [token for token, _ in one.top] == truth.topk(2).indices.tolist()


def test_nothing_waits_for_the_device() -> None:
    """Where tensors have no values, as those on a GPU have none yet, all of it can still be launched."""
    meta = torch.device("meta")
    rows = [
        Asked(SamplingParams(temperature=0.0)),
        Asked(SamplingParams(repetition_penalty=1.1), mask=mask_of([1, 2])),
        Asked(SamplingParams(min_tokens=2, logit_bias=((1, 1.0),)), stop_ids=frozenset((3,))),
    ]
    ops = ReferenceOps(meta, torch.bfloat16)
    for some in (rows, rows[1:], rows[:2], rows[1:2]):
        logits = torch.empty((len(some), VOCAB), dtype=torch.bfloat16, device=meta)
        steps = [one.step() for one in some]
        tokens = sample(logits, steps, ops, lambda *arrays: tuple(torch.from_numpy(one).to(meta) for one in arrays))
        assert tokens.shape == (len(some),) and tokens.dtype == torch.int64 and tokens.is_meta


# ---------------------------------------------------------------- transformers


@given(
    prompt=st.lists(TOKENS, min_size=1, max_size=8),
    output=st.lists(TOKENS, max_size=8),
    repetition=st.sampled_from((1.0, 0.7, 1.3, 4.0)),
    bias=st.dictionaries(TOKENS, st.sampled_from((-100.0, 1.5, 8.0)), max_size=4),
    suppressed=st.sets(TOKENS, max_size=4),
    seed=st.integers(0, 999),
)
def test_as_transformers_processes(
    prompt: list[int],
    output: list[int],
    repetition: float,
    bias: dict[int, float],
    suppressed: set[int],
    seed: int,
) -> None:
    """Bias, repetition penalty and suppressed tokens give the scores of its processors in the same order."""
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    sampling = SamplingParams(repetition_penalty=repetition, logit_bias=tuple(bias.items()), min_tokens=99)
    asked = Asked(sampling, prompt, output, stop_ids=frozenset(suppressed))
    processors = LogitsProcessorList()
    if bias:
        processors.append(SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}))
    processors.append(RepetitionPenaltyLogitsProcessor(repetition))
    processors.append(SuppressTokensLogitsProcessor(sorted(suppressed), device="cpu"))
    expected = processors(torch.tensor([[*prompt, *output]]), logits.clone())
    part = asked.step()
    found = logits if part.options is None else shape(logits, [part], [0], PLAIN, send)[1]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@settings(max_examples=40)
@given(
    temperature=st.sampled_from((0.5, 1.0, 2.0)),
    top_k=st.sampled_from((0, 20)),
    top_p=st.sampled_from((1.0, 0.83)),
    min_p=st.sampled_from((0.02, 0.13, 0.6)),
    seed=st.integers(0, 999),
)
def test_as_transformers_warps(
    backend: str, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    """What can be drawn is what its warpers leave in the same order, each token as often as they say."""
    count = 2000
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    warpers.append(MinPLogitsWarper(min_p))
    share = warpers(torch.tensor([[0]]), logits.clone()).softmax(-1)[0]
    ops = select_backend(backend, device=CPU, dtype=torch.float32)  # type: ignore[arg-type]
    how = torch.tensor([[temperature, top_k, top_p, 0.0, math.log(min_p)]], dtype=torch.float64).repeat(count, 1)
    how[:, 3] = (torch.arange(count) + 0.5) / count
    found = torch.bincount(ops.sample(logits.expand(count, -1), how), minlength=VOCAB) / count
    assert not found[share == 0].any()
    torch.testing.assert_close(found, share, atol=2 / count, rtol=0)
