"""Predicted seconds of swapping and of computing again, from what steps took."""

import pytest

from engine.memory.tiers.rate import START_RATE, CopyRate
from engine.request import BlockId, SequenceId, SlabId
from engine.scheduler.step_time import StepTimeModel, StepWork, chunk_pairs
from engine.scheduler.swap_cost import SwapCost
from engine.step import SequenceStep, SlabMove, StepPlan, StepResult

BLOCK_BYTES = 1_000_000


def plan(num_stores: int, num_loads: int) -> StepPlan:
    """Return a plan with so many copies."""
    moves = [SlabMove(BlockId(number), SlabId(number)) for number in range(max(num_stores, num_loads))]
    part = SequenceStep(SequenceId(1), 0, 0, (1,), None)
    return StepPlan(
        number=1,
        sequences=(part,),
        table_writes=(),
        stores=tuple(moves[:num_stores]),
        loads=tuple(moves[:num_loads]),
    )


def test_a_rate_follows_what_was_copied() -> None:
    """The guess is soon forgotten; later copies count for more than earlier ones, large ones for more than small."""
    rate = CopyRate()
    assert rate.bytes_per_second == START_RATE
    for _ in range(40):
        rate.observe(10_000_000, 0.001)
    assert rate.bytes_per_second == pytest.approx(10e9, rel=0.01)
    rate.observe(10_000, 0.001)
    assert rate.bytes_per_second == pytest.approx(9e9, rel=0.03)
    for _ in range(40):
        rate.observe(10_000_000, 0.01)
    assert rate.bytes_per_second == pytest.approx(1e9, rel=0.02)
    assert rate.predict(500_000_000) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_cannot_be_is_ignored(seconds: float) -> None:
    """The clock was set back, or nothing was measured."""
    rate = CopyRate()
    rate.observe(1000, seconds)
    assert rate.bytes_per_second == START_RATE


def test_each_way_has_its_own_rate() -> None:
    """Stores teach nothing of loads, and a step without copies nothing of either."""
    cost = SwapCost(BLOCK_BYTES, StepTimeModel())
    for _ in range(60):
        cost.observe(plan(8, 0), StepResult(token_ids=(), seconds=0.1, store_seconds=0.008))
        cost.observe(plan(0, 0), StepResult(token_ids=(), seconds=0.1))
    assert cost.store_seconds(3) == pytest.approx(0.003, rel=0.01)
    assert cost.load_seconds(3) == pytest.approx(3 * BLOCK_BYTES / START_RATE)


def test_computing_costs_what_its_tokens_add_to_steps() -> None:
    """Not what a step takes in any case; tokens after a long context cost more than the first ones."""
    model = StepTimeModel()
    for tokens in (16, 32, 64, 128, 256, 512) * 30:
        for start in (0, 1000, 3000):
            pairs = chunk_pairs(start, tokens)
            model.observe(StepWork(0, 0, tokens, pairs), 0.02 + tokens * 1e-4 + pairs * 1e-8)
    cost = SwapCost(BLOCK_BYTES, model)
    assert cost.compute_seconds(0, 400) == pytest.approx(400 * 1e-4 + chunk_pairs(0, 400) * 1e-8, rel=0.1)
    assert cost.compute_seconds(3000, 3400) > cost.compute_seconds(0, 400)
    assert cost.compute_seconds(0, 200) + cost.compute_seconds(200, 400) == pytest.approx(cost.compute_seconds(0, 400))


def test_computing_is_a_guess_before_anything_was_seen() -> None:
    """A worker that has just started may load and fetch what it finds: a token is taken to cost a millisecond."""
    assert SwapCost(BLOCK_BYTES, StepTimeModel()).compute_seconds(0, 1000) == pytest.approx(1.0)
