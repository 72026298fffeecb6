"""How long a coarse step takes: as long as the machine's steps that it stands for."""

import pytest

from engine.replay.pace import Pace
from engine.request import BlockId, SamplingParams, SequenceId, SlabId
from engine.scheduler.step_time import chunk_pairs
from engine.step import SequenceStep, SlabMove, StepPlan
from engine.trace.records import Machine, Speed

BASE, DECODE, CONTEXT, TOKEN, PAIR = WEIGHTS = (0.01, 0.001, 1e-5, 1e-4, 1e-8)
MACHINE = Machine(num_blocks=64, block_size=16, block_bytes=1000, max_rows=16, max_context=4096, max_batched_tokens=128)
SAMPLING = SamplingParams()
NO_TARGET = float("inf")


def pace(grain: int, weights: tuple[float, ...] = WEIGHTS) -> Pace:
    """Return the pace of a machine that stores 10,000 and loads 20,000 bytes a second."""
    return Pace(Speed(0.0, weights, 10_000.0, 20_000.0), MACHINE, grain)


def decode(number: int, start: int) -> SequenceStep:
    """Return a sequence that generates."""
    return SequenceStep(SequenceId(number), number, start, (7,), SAMPLING, position=3)


def chunk(number: int, start: int, count: int, *, ends: bool = True) -> SequenceStep:
    """Return a sequence whose prompt is computed."""
    return SequenceStep(SequenceId(number), number, start, (7,) * count, SAMPLING if ends else None)


def plan(*sequences: SequenceStep, stores: int = 0, loads: int = 0) -> StepPlan:
    """Return a step."""
    move = SlabMove(BlockId(0), SlabId(0))
    return StepPlan(number=1, sequences=sequences, table_writes=(), stores=(move,) * stores, loads=(move,) * loads)


@pytest.mark.parametrize("grain", [1, 4, 16])
def test_decodes_take_as_many_steps_as_a_coarse_token_has_tokens(grain: int) -> None:
    """Each with all of them, over the context that they have."""
    step = pace(grain).step(plan(decode(1, 9), decode(2, 19)), NO_TARGET)
    each = BASE + 2 * DECODE + CONTEXT * grain * 30
    assert step.seconds == pytest.approx(grain * each)
    assert step.num_steps == grain
    assert step.observed == pytest.approx(each)


@pytest.mark.parametrize("grain", [1, 4, 16])
def test_a_prompt_alone_takes_the_steps_that_it_fills(grain: int) -> None:
    """A short one is done in a step of the machine, in any grain; its attention is that of its tokens."""
    short = pace(grain).step(plan(chunk(1, 0, 64 // grain)), NO_TARGET)
    pairs = grain * grain * chunk_pairs(0, 64 // grain)
    assert short.num_steps == 1
    assert short.first_tokens == {1: pytest.approx(BASE + 64 * TOKEN + PAIR * pairs)}
    assert short.seconds == short.first_tokens[1]
    long = pace(grain).step(plan(chunk(1, 0, 128, ends=False)), NO_TARGET)
    assert long.num_steps == grain
    assert long.first_tokens == {}


def test_who_is_first_in_a_coarse_step_has_the_first_token_first() -> None:
    """Its step of the machine ends before those of the others, and decodes go on to the end of all."""
    step = pace(16).step(plan(decode(1, 9), chunk(2, 0, 2), chunk(3, 0, 120, ends=False)), NO_TARGET)
    assert 0 < step.first_tokens[2] < step.seconds / 8
    last = pace(16).step(plan(decode(1, 9), chunk(3, 0, 120), chunk(2, 0, 2)), NO_TARGET)
    assert last.first_tokens[3] <= last.first_tokens[2] <= last.seconds * 1.000001


def test_copies_take_time_and_are_told_in_coarse_terms() -> None:
    """All of it passes; the scheduler, to which a coarse token costs what one of the model's does, is told its part."""
    still = pace(4).step(plan(decode(1, 9)), NO_TARGET)
    copying = pace(4).step(plan(decode(1, 9), stores=2, loads=4), NO_TARGET)
    assert copying.seconds - still.seconds == pytest.approx(2 * 0.1 + 4 * 0.05)
    assert (copying.store_seconds, copying.load_seconds) == (pytest.approx(0.2 / 4), pytest.approx(0.2 / 4))
    assert copying.observed - copying.store_seconds - copying.load_seconds == pytest.approx(still.observed)


def test_a_machine_that_has_not_told_its_speed_has_one() -> None:
    """A trace without a record of it can be replayed too."""
    step = Pace(None, MACHINE, 4).step(plan(decode(1, 9), loads=1), NO_TARGET)
    assert step.seconds > 0
