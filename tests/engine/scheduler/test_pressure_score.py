"""The pressure score: what raises it, by how much, and how fast."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory.accounts import LOW_WATERMARK
from engine.request import Priority
from engine.scheduler.fairness import RANK
from engine.scheduler.pressure_score import (
    HIGH_WATERMARK,
    SMOOTHING_SECONDS,
    WAIT_SECONDS,
    WEIGHTS,
    Parts,
    PressureGauge,
    combine,
)
from tests.engine.world import World

PART = st.floats(0.0, 1.0)
PARTS = st.builds(Parts, use=PART, borrowed=PART, wait=PART, swap=PART)


@given(parts=PARTS, place=st.integers(0, 3), more=PART)
def test_the_score_rises_with_each_part_and_stays_within_its_bounds(parts: Parts, place: int, more: float) -> None:
    """Whatever the others are: no part can hide another."""
    values = list(parts)
    values[place] += more * (1.0 - values[place])
    raised = Parts(*values)
    assert 0.0 <= combine(parts) <= combine(raised) + 1e-12
    assert combine(raised) < 1.0
    if raised[place] - parts[place] > 1e-6:
        assert combine(raised) > combine(parts)


@pytest.mark.parametrize("name", Parts._fields)
def test_a_part_alone_comes_to_its_weight(name: str) -> None:
    """So the documented figures hold."""
    assert combine(Parts(**{name: 1.0})) == pytest.approx(getattr(WEIGHTS, name))


def test_nothing_is_no_pressure_and_everything_is_nearly_all() -> None:
    """Zero of an idle worker, 0.97 at the worst."""
    assert combine(Parts()) == 0.0
    assert combine(Parts(1.0, 1.0, 1.0, 1.0)) == pytest.approx(0.972)


def settled(world: World) -> PressureGauge:
    """Let so much time pass, without a step, that smoothing plays no part."""
    gauge = world.scheduler.roster.pressure
    for _ in range(2):
        world.now += 30 * SMOOTHING_SECONDS
        gauge.refresh(world.now)
    return gauge


def test_caches_that_can_be_taken_make_no_pressure() -> None:
    """A pool full of what nobody needs is not short of memory; of a cache within its guarantee the reserve is left."""
    world = World(num_blocks=20, block_size=4, budget=128)
    world.policy("whale")
    world.submit("whale", 76, 4)
    world.run()
    assert world.cached("whale") >= 19
    assert settled(world).score == 0.0
    world.policy("whale", soft=20)
    gauge = settled(world)
    assert gauge.use() == pytest.approx(LOW_WATERMARK)
    assert gauge.score == 0.0


def test_blocks_in_use_are_pressure() -> None:
    """What nobody can have up to the last block makes all of its part of the score."""
    world = World(num_blocks=20, block_size=4, budget=128)
    world.policy("whale", soft=18)
    world.submit("whale", 76, 4)
    world.step()
    gauge = settled(world)
    assert gauge.use() >= HIGH_WATERMARK
    assert gauge.parts.use == 1.0
    assert gauge.score >= WEIGHTS.use


def test_use_counts_from_the_low_watermark_to_the_high_one() -> None:
    """Below 0.90 it is nothing, at 0.925 half, from 0.95 on all."""
    for tokens, use in ((140, 0.0), (148, 0.5), (152, 1.0)):
        world = World(num_blocks=40, block_size=4, budget=256)
        world.policy("whale", soft=40)
        world.submit("whale", tokens - 1, 1, namespace=b"")
        plan = world.scheduler.plan()
        assert plan is not None
        assert settled(world).parts.use == pytest.approx(use)


def test_borrowed_blocks_count_as_a_share_of_the_pool() -> None:
    """Those that sequences use above the guarantee."""
    world = World(num_blocks=40, block_size=4, budget=256)
    world.policy("whale", soft=4)
    world.submit("whale", 79, 1)
    world.scheduler.plan()
    assert settled(world).parts == Parts(borrowed=16 / 40)


@pytest.mark.parametrize("priority", Priority)
def test_a_request_that_memory_keeps_waiting_raises_it_by_its_class(priority: Priority) -> None:
    """All the way when it has waited as long as its class bears; what its own ceiling stops makes none."""
    world = World(num_blocks=20, block_size=4, budget=128)
    world.policy("whale", soft=10, blocks=20)
    world.policy("minnow", blocks=20, priority=priority)
    world.submit("whale", 60, 20, namespace=b"")
    world.step()
    world.submit("whale", 30, 4)
    world.step()
    assert settled(world).parts.wait == 0.0
    minnow = world.submit("minnow", 30, 4, priority=priority)
    world.step()
    gauge, bears = world.scheduler.roster.pressure, WAIT_SECONDS[RANK[priority]]
    world.now += bears / 2
    gauge.refresh(world.now)
    assert 0.0 < gauge.parts.wait <= 0.51
    assert settled(world).parts.wait > 0.99
    world.cancel(minnow)
    assert settled(world).parts.wait < 1e-6


def test_time_that_copies_take_counts_as_a_share_of_the_time() -> None:
    """Bytes a second by the measured rate are the seconds of copying in a second."""
    world = World()
    gauge = settled(world)
    for _ in range(100):
        world.now += 0.1
        gauge.copied(0.025)
        gauge.refresh(world.now)
    assert gauge.parts.swap == pytest.approx(0.25)
    assert settled(world).parts.swap < 1e-6


def test_parts_follow_with_a_time_constant_of_half_a_second() -> None:
    """However often it is worked out: after half a second 63 % of a jump are there."""
    for pauses in ((0.5,), (0.1,) * 5, (0.06, 0.44)):
        world = World(num_blocks=20, block_size=4, budget=128)
        world.policy("whale", soft=20)
        gauge = settled(world)
        world.submit("whale", 79, 1, namespace=b"")
        world.scheduler.plan()
        for pause in pauses:
            world.now += pause
            gauge.refresh(world.now)
        assert gauge.parts.use == pytest.approx(1 - math.exp(-1))


def test_it_is_worked_out_seldom() -> None:
    """A plan reads the score of the last twentieth of a second: a look at every account is not due in each."""
    world = World(num_blocks=20, block_size=4, budget=128)
    world.policy("whale", soft=20)
    gauge = settled(world)
    world.submit("whale", 79, 1, namespace=b"")
    world.scheduler.plan()
    world.now += 0.04
    gauge.refresh(world.now)
    before = gauge.score
    world.now += 0.02
    gauge.refresh(world.now)
    assert (before, gauge.score > 0) == (0.0, True)
