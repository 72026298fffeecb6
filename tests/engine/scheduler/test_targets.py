"""How long a step may take: by class, by what the stream would take alone, and for who is likely to come."""

import math

import pytest

from engine.request import Priority
from engine.scheduler.step_time import StepTimeModel, StepWork
from engine.scheduler.targets import (
    INTER_TOKEN_SECONDS,
    MIN_CHUNK_TOKENS,
    PRESENT_SECONDS,
    SLOWDOWN,
    step_seconds,
)
from tests.engine.world import World

OWN, TOKEN = 0.015, 0.00015  # seconds of a step, and of each token in it
BARE = OWN + TOKEN


def world_of(minnow: Priority) -> World:
    """Return a world with a minnow of that class and a whale of the class batch, whose step times are known."""
    world = World(num_blocks=1024, budget=512, max_context=4000, token_seconds=TOKEN)
    world.policy("minnow", blocks=512, max_context_tokens=4000, priority=minnow)
    world.policy("whale", blocks=1024, max_context_tokens=4000, priority=Priority.BATCH)
    for length in (20, 60, 300, 5, 150, 400):
        world.submit("whale", length, 4, priority=Priority.BATCH)
        while world.step(OWN):
            pass
    return world


def chunk(world: World) -> int:
    """Run a step and return how many prompt tokens it had."""
    assert world.step(OWN)
    assert world.plan is not None
    return sum(len(part.token_ids) for part in world.plan.sequences if not part.position)


def test_an_interactive_stream_is_slowed_down_so_much_at_most() -> None:
    """On a machine far faster than the class asks for, a neighbour's long prompt costs a stream a known factor."""
    world = world_of(Priority.INTERACTIVE)
    stream = world.submit("minnow", 8, 100, priority=Priority.INTERACTIVE)
    for _ in range(10):
        world.step(OWN)
    world.submit("whale", 3000, 1, priority=Priority.BATCH)
    times, sizes = [], []
    for _ in range(12):
        before = world.now
        sizes.append(chunk(world))
        times.append(world.now - before)
    assert stream not in world.finished
    assert max(times[2:]) <= SLOWDOWN * BARE < INTER_TOKEN_SECONDS[0]
    assert min(sizes[2:]) > MIN_CHUNK_TOKENS


def test_a_standard_stream_has_the_target_of_its_class_alone() -> None:
    """A standard stream waits longer than that factor: the whole budget is within its target here."""
    world = world_of(Priority.STANDARD)
    world.submit("minnow", 8, 100)
    for _ in range(10):
        world.step(OWN)
    world.submit("whale", 3000, 1, priority=Priority.BATCH)
    assert [chunk(world) for _ in range(3)] == [511, 511, 511]


def test_steps_stay_short_for_a_while_after_the_last_interactive_request() -> None:
    """The next one comes in the middle of a step; when none has come for long, prompts get the whole budget again."""
    world = world_of(Priority.INTERACTIVE)
    world.submit("minnow", 8, 2, priority=Priority.INTERACTIVE)
    while world.step(OWN):
        pass
    left_at = world.now
    world.submit("whale", 3000, 1, priority=Priority.BATCH)
    assert MIN_CHUNK_TOKENS <= chunk(world) < 512
    assert OWN + TOKEN * chunk(world) <= SLOWDOWN * BARE
    world.now = left_at + PRESENT_SECONDS + 1
    assert chunk(world) == 512


def test_an_interactive_request_that_waits_counts_as_present() -> None:
    """Its prompt is computed in the step that it comes into, together with little of anybody else's."""
    world = world_of(Priority.INTERACTIVE)
    world.submit("whale", 3000, 1, priority=Priority.BATCH)
    assert chunk(world) == 512
    world.submit("minnow", 8, 2, priority=Priority.INTERACTIVE)
    before = world.now
    assert chunk(world) > 8
    assert world.now - before <= SLOWDOWN * BARE


@pytest.mark.parametrize("rank", range(len(INTER_TOKEN_SECONDS)))
def test_without_a_step_to_learn_from_the_class_alone_counts(rank: int) -> None:
    """Nothing is known of this machine yet."""
    assert step_seconds(rank, StepTimeModel()) == INTER_TOKEN_SECONDS[rank]


def test_the_target_of_a_class_is_never_exceeded_on_a_slow_machine() -> None:
    """The factor only makes the target stricter."""
    model = StepTimeModel()
    for _ in range(50):
        model.observe(StepWork(1, 100), 3.0)
    assert step_seconds(0, model) == INTER_TOKEN_SECONDS[0]
    assert step_seconds(2, model) == math.inf
