"""Sampling: the right distribution, and never a batch mate's business."""

import pytest
import torch

from engine.model import sampler
from engine.model.sampler import uniform
from engine.request import SamplingParams, SequenceId
from engine.step import SequenceStep
from kernels.ops import Ops, select_backend
from kernels.reference.ops import ReferenceOps

VOCAB = 3000


@pytest.fixture(params=["cpu", "reference"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """Who computes: the C++ of the CPU, or torch as on any device."""
    return select_backend(request.param, device=torch.device("cpu"), dtype=torch.bfloat16)


def part(sampling: SamplingParams, *, position: int = 0, key: int = 7) -> SequenceStep:
    """Return a decode with these parameters."""
    return SequenceStep(
        sequence=SequenceId(0), row=0, start=0, token_ids=[1], sampling=sampling, position=position, random_key=key
    )


def sample(ops: Ops, logits: torch.Tensor, parts: list[SequenceStep]) -> torch.Tensor:
    """Sample a token of each row."""
    return sampler.sample(logits, parts, ops, lambda *arrays: tuple(map(torch.from_numpy, arrays)))


def draws(ops: Ops, logits: torch.Tensor, sampling: SamplingParams, count: int) -> torch.Tensor:
    """Sample `count` positions of one random stream over the same logits."""
    rows = logits.expand(count, -1)
    return sample(ops, rows, [part(sampling, position=position) for position in range(count)])


def flat_and_peaked() -> torch.Tensor:
    """Return logits of a long tail behind a few likely tokens."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    logits[[5, 17, 900]] += 7.0
    return logits


def test_greedy_takes_the_best(ops: Ops) -> None:
    """Temperature 0 takes the best token, whatever else is set."""
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
    parts = [part(SamplingParams(temperature=0.0, top_p=0.1 * row, top_k=row)) for row in range(4)]
    assert torch.equal(sample(ops, logits, parts), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(ops: Ops, temperature: float) -> None:
    """Over many draws the likely tokens come as often as the tempered softmax says."""
    logits = flat_and_peaked()
    count = 4000
    tokens = draws(ops, logits, SamplingParams(temperature=temperature), count)
    share = (logits / temperature).softmax(-1)
    for token in (5, 17, 900):
        expected = float(share[token])
        found = int((tokens == token).sum()) / count
        assert abs(found - expected) < 4 * (expected * (1 - expected) / count) ** 0.5 + 1e-9


def test_top_k_bounds_the_choice(ops: Ops) -> None:
    """Only the k best tokens are ever drawn, each of them sometimes, in the softmax's proportion."""
    logits = flat_and_peaked()
    tokens = draws(ops, logits, SamplingParams(temperature=1.0, top_k=3), 2000)
    best = logits.topk(3).indices
    assert set(tokens.tolist()) == set(best.tolist())
    share = logits[best].softmax(-1)[0]
    assert abs(float((tokens == best[0]).double().mean()) - float(share)) < 0.05


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_top_p_keeps_the_smallest_set_that_reaches_it(ops: Ops, top_p: float) -> None:
    """Drawn tokens lie in the nucleus, whether the best thousand tokens hold it or all must be sorted."""
    logits = flat_and_peaked() if top_p < 0.5 else torch.randn(VOCAB, generator=torch.Generator().manual_seed(4)) * 0.1
    share, order = logits.double().softmax(-1).sort(descending=True)
    size = int((share.cumsum(-1) < top_p).sum()) + 1
    tokens = draws(ops, logits, SamplingParams(temperature=1.0, top_p=top_p), 1500)
    assert set(tokens.tolist()) <= set(order[:size].tolist())
    assert len(set(tokens.tolist())) > min(size, 1000) / 3


def test_top_p_zero_is_greedy(ops: Ops) -> None:
    """A nucleus of nothing still has the best token."""
    logits = flat_and_peaked()
    assert set(draws(ops, logits, SamplingParams(temperature=1.0, top_p=0.0), 50).tolist()) == {int(logits.argmax())}


def test_top_k_and_top_p_together(ops: Ops) -> None:
    """The nucleus is cut out of the k best tokens' own distribution."""
    logits = torch.full((VOCAB,), -20.0)
    logits[:4] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    tokens = draws(ops, logits, SamplingParams(temperature=1.0, top_k=2, top_p=0.5), 200)
    assert set(tokens.tolist()) == {0}  # 0.4 / 0.7 reaches a half; of all four it would not


@pytest.mark.parametrize("options", [{}, {"top_k": 40}, {"top_p": 0.97}])
def test_min_p_keeps_what_is_likely_enough_beside_the_best(ops: Ops, options: dict[str, float]) -> None:
    """Drawn tokens have that share of the best one's probability, each that has it sometimes, at the temperature."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(4))
    share = (logits / 0.7).softmax(-1)
    allowed = set((share >= 0.2 * share.max()).nonzero()[:, 0].tolist())
    assert len(allowed) > 3
    sampling = SamplingParams(temperature=0.7, min_p=0.2, **options)  # type: ignore[arg-type]
    assert set(draws(ops, logits, sampling, 1000).tolist()) == allowed


def test_min_p_one_is_greedy(ops: Ops) -> None:
    """Nothing but the best token has all of its own probability."""
    logits = flat_and_peaked()
    assert set(draws(ops, logits, SamplingParams(min_p=1.0), 50).tolist()) == {int(logits.argmax())}


def test_same_key_and_position_repeat(ops: Ops) -> None:
    """A seed repeats its tokens; another seed and another position give others."""
    logits = torch.zeros(1, VOCAB)
    free = SamplingParams(temperature=1.0)
    first = sample(ops, logits, [part(free, position=3, key=11)])
    assert torch.equal(sample(ops, logits, [part(free, position=3, key=11)]), first)
    assert not torch.equal(sample(ops, logits, [part(free, position=4, key=11)]), first)
    assert not torch.equal(sample(ops, logits, [part(free, position=3, key=12)]), first)


def test_batch_mates_change_nothing(ops: Ops) -> None:
    """Each row of a mixed batch draws what it draws alone, also where many logits are equal."""
    num_rows = 88  # more of each kind than are drawn at once
    logits = torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(5)).bfloat16()
    options = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_k=40),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.5, top_k=500, top_p=0.95),
        SamplingParams(temperature=9.0, top_p=0.99),
        SamplingParams(temperature=2.0, min_p=0.1),
        SamplingParams(temperature=4.0, top_k=400, top_p=0.9, min_p=0.3),
    ]
    parts = [part(options[row % len(options)], position=row, key=row * row) for row in range(num_rows)]
    together = sample(ops, logits, parts)
    for row in range(num_rows):
        assert int(sample(ops, logits[row : row + 1], parts[row : row + 1])) == int(together[row])


def test_logits_stay_as_they_are(ops: Ops) -> None:
    """Sampling leaves the logits to whoever reads them after it, such as the log-probabilities."""
    logits = flat_and_peaked()[None].repeat(3, 1)
    before = logits.clone()
    sample(ops, logits, [part(SamplingParams(top_p=0.5)), part(SamplingParams(top_k=4)), part(SamplingParams())])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-30, 1e-5, 1e30])
def test_extreme_temperatures_stay_in_range(ops: Ops, temperature: float) -> None:
    """A tiny temperature is greedy and a huge one uniform; neither overflows."""
    logits = flat_and_peaked()
    tokens = draws(ops, logits, SamplingParams(temperature=temperature), 100)
    assert int(tokens.min()) >= 0 and int(tokens.max()) < VOCAB
    assert len(set(tokens.tolist())) == 1 if temperature < 1 else len(set(tokens.tolist())) > 60


def test_uniform_is_uniform() -> None:
    """A stream's numbers fill [0, 1) evenly; negative and huge keys are as good as any."""
    for key in (0, -1, 2**64 + 5, 123456789):
        numbers = torch.tensor([uniform(key, position) for position in range(4000)], dtype=torch.float64)
        assert float(numbers.min()) >= 0.0 and float(numbers.max()) < 1.0
        counts = torch.histc(numbers, bins=10, min=0.0, max=1.0)
        assert float((counts - 400).abs().max()) < 100


def test_nothing_waits_for_the_device() -> None:
    """Where tensors have no values, as those on a GPU have none yet, all of sampling can still be launched."""
    meta = torch.device("meta")
    rows = [
        SamplingParams(),
        SamplingParams(top_p=0.5),
        SamplingParams(top_k=4, top_p=0.9),
        SamplingParams(temperature=0.0),
    ]
    ops = ReferenceOps(meta, torch.bfloat16)
    logits = torch.empty((len(rows), VOCAB), dtype=torch.bfloat16, device=meta)
    for parts in ([part(one) for one in rows], [part(rows[3])] * 4):
        tokens = sampler.sample(
            logits, parts, ops, lambda *arrays: tuple(torch.from_numpy(one).to(meta) for one in arrays)
        )
        assert tokens.shape == (4,) and tokens.dtype == torch.int64 and tokens.is_meta
