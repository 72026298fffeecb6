"""Predicted output lengths: calibrated, quick to learn, and never moved by what says nothing."""

from collections.abc import Callable
from random import Random

import pytest

from engine.scheduler.predict import OutputLengths

SHAPES: dict[str, Callable[[Random], int]] = {
    "short": lambda random: random.randint(1, 12),
    "chat": lambda random: max(1, int(random.lognormvariate(5.5, 0.8))),
    "long": lambda random: random.randint(2000, 9000),
    "two kinds": lambda random: random.choice((3, 3, 3, 3, 700, 800)),
    "one length": lambda random: 256,
}


def learnt(shape: Callable[[Random], int], random: Random, count: int = 300, quantile: float = 0.75) -> OutputLengths:
    """Return a history of `count` outputs."""
    lengths = OutputLengths(quantile)
    for _ in range(count):
        lengths.observe(shape(random))
    return lengths


def share_within(samples: list[int], limit: float) -> float:
    """Return the share of the samples up to `limit`."""
    return sum(sample <= limit for sample in samples) / len(samples)


@pytest.mark.parametrize("quantile", [0.5, 0.75, 0.9])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_quantile_is_calibrated(shape: Callable[[Random], int], quantile: float) -> None:
    """About the asked share of outputs keeps within the prediction, give or take the width of a bin."""
    random = Random()
    predicted = learnt(shape, random, quantile=quantile).predict()
    samples = [shape(random) for _ in range(2000)]
    assert share_within(samples, 1.25 * predicted + 1) > quantile - 0.15
    assert share_within(samples, predicted / 1.25 - 1) < quantile + 0.15


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_has_been_generated_shortens_the_odds(shape: Callable[[Random], int]) -> None:
    """A prediction is always longer than what is there, and never falls as more is generated."""
    lengths = learnt(shape, Random())
    predictions = [lengths.predict(generated) for generated in range(0, 10_000, 7)]
    assert all(length > generated for length, generated in zip(predictions, range(0, 10_000, 7), strict=True))
    assert predictions == sorted(predictions)


def test_a_long_output_of_two_kinds_is_recognised() -> None:
    """When most outputs end after 3 tokens and the rest near 800, an output with 20 is of the second kind."""
    lengths = learnt(SHAPES["two kinds"], Random())
    assert lengths.predict(20) in range(600, 1000)


def test_a_tenant_without_history_gets_the_prior() -> None:
    """Nothing finished yet: some hundred tokens, whatever other tenants did."""
    learnt(SHAPES["long"], Random())
    assert 128 < OutputLengths().predict() < 600
    assert OutputLengths().predict() == OutputLengths().predict()


def test_a_dozen_outputs_outweigh_the_prior() -> None:
    """Twelve outputs of at most 12 tokens, and the prediction is not in the hundreds any more."""
    assert learnt(SHAPES["short"], Random(), count=12).predict() < 100


def test_a_change_of_habit_is_followed() -> None:
    """After a thousand short outputs, a hundred and fifty long ones set the prediction."""
    random = Random()
    lengths = learnt(SHAPES["short"], random, count=1000)
    for _ in range(150):
        lengths.observe(SHAPES["long"](random))
    assert lengths.predict() > 2000


def test_outputs_cut_short_do_not_pull_the_prediction_down() -> None:
    """Outputs of 400 tokens of which half are cancelled early: the median stays near 400."""
    random, lengths = Random(), OutputLengths(0.5)
    for _ in range(400):
        if random.random() < 0.5:
            lengths.observe(random.randint(1, 300), complete=False)
        else:
            lengths.observe(random.randint(380, 420))
    assert lengths.predict() in range(330, 520)


def test_outputs_that_are_all_cut_short_say_longer() -> None:
    """A tenant that always runs into its max_tokens of 64 would go on longer than 64."""
    lengths = OutputLengths()
    for _ in range(3000):
        lengths.observe(64, complete=False)
    assert lengths.predict() > 64
    assert lengths.predict() < 10**6


def test_any_history_gives_a_sane_prediction() -> None:
    """Zero, one and a million tokens, complete or not, in any order and for long: always a length in range."""
    random = Random()
    for _ in range(20):
        lengths = OutputLengths(random.uniform(0.01, 0.99))
        for _ in range(random.choice((1, 10, 4000))):
            lengths.observe(int(2 ** random.uniform(-1, 22)), complete=random.random() < 0.7)
        for generated in (0, 1, 2, 17, 4096, 10**6, 10**7):
            assert generated < lengths.predict(generated) <= max(generated + 1, 2**20)


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.5, 2.0])
def test_a_quantile_out_of_range_is_refused(quantile: float) -> None:
    """Only what lies between 0 and 1 can be predicted."""
    with pytest.raises(ValueError, match="quantile"):
        OutputLengths(quantile)
