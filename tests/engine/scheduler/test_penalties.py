"""Penalties and bias over a crowded pool: whatever happens to a sequence, its tokens are those it has alone."""

from collections.abc import Iterable

import pytest

from engine.request import FinishReason, SequenceId, TenantId
from engine.scheduler.sizing import window_blocks
from tests.engine.world import ShortOutputs, World

PROMPT = [31 * place % 900 + 50 for place in range(21)]
BIAS = ((50, 4.0), (81, -100.0), (900, 15.5))
# A negative penalty brings tokens back, so that each choice hangs on the count of what was there.
ASKS: list[dict[str, object]] = [
    {"frequency_penalty": -0.75},
    {"presence_penalty": 1.5, "repetition_penalty": 0.8},
    {"repetition_penalty": 1.4, "logit_bias": BIAS},
    {"frequency_penalty": -2.0, "presence_penalty": 0.5, "min_tokens": 5},
    {"logit_bias": BIAS},
    {},
]


def all_outputs(world: World) -> Iterable[object]:
    """Return every output of every request."""
    for request, what in world.requests.items():
        yield request
        yield from ((request, index) for index in range(1, what.n))


def assert_all_exact(world: World) -> None:
    """Everything has ended at its limit, and has the tokens that it gets alone."""
    for output in all_outputs(world):
        assert world.finished[output] is FinishReason.LENGTH  # type: ignore[index]
        world.assert_exact(output)  # type: ignore[arg-type]
    world.assert_empty()


def test_penalties_change_the_text() -> None:
    """Else nothing here would prove anything: each of them leads elsewhere than a plain request with the same seed."""
    world = World(num_blocks=200)
    world.policy("minnow", blocks=200)
    requests = [world.submit("minnow", PROMPT, 30, seed=3, **asks) for asks in ASKS]
    world.run()
    assert_all_exact(world)
    assert len({tuple(world.tokens[request]) for request in requests}) == len(ASKS)


@pytest.mark.parametrize("ahead", [False, True])
def test_forks_and_preemptions(ahead: bool) -> None:
    """Several outputs of each request in a pool that holds a few of them: preempted, swapped, computed again."""
    world = World(block_size=4, num_blocks=24, budget=24, ahead=ahead, num_slabs=30)
    world.policy("minnow", blocks=24, slabs=30)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    for number, asks in enumerate(ASKS):
        world.submit("minnow", PROMPT[: 5 + 3 * number], 25, n=1 + number % 3, **asks)
        world.step()
    world.run()
    assert world.scheduler.roster.num_preemptions > 5
    assert_all_exact(world)


def test_nobody_with_a_penalty_is_planned_ahead_of_a_token() -> None:
    """Who has a bias alone is."""
    world = World(ahead=True, num_blocks=100)
    world.policy("minnow", blocks=100)
    requests = [world.submit("minnow", PROMPT, 20, **asks) for asks in ASKS]
    ahead: set[SequenceId] = set()
    while world.step():
        if world.plan is not None:
            ahead |= {part.sequence for part in world.plan.sequences if min(part.token_ids) < 0}
    assert ahead == set(requests[-2:])
    assert_all_exact(world)


def test_streamed_sequences() -> None:
    """Larger than the pool, with blocks in host memory."""
    block_size = 4
    num_blocks = window_blocks(block_size) + 6
    world = World(num_blocks=num_blocks, block_size=block_size, budget=16, max_context=300, num_slabs=400, streams=True)
    world.policy("minnow", blocks=num_blocks, slabs=400, max_context_tokens=300)
    for number, asks in enumerate(ASKS):
        prompt = [place * 7 % 400 + number for place in range(90 + 10 * number)]
        world.submit("minnow", prompt, 40, **asks)
    world.run(20_000)
    assert world.scheduler.roster.streaming.offloaded_blocks > 0
    assert_all_exact(world)


def test_the_next_turn_counts_its_own_output_alone() -> None:
    """The output of a turn is prompt in the next: frequency and presence begin anew, repetition does not."""
    world = World(num_blocks=100)
    world.policy("minnow", blocks=100)
    asks: dict[str, object] = {"frequency_penalty": -1.0, "repetition_penalty": 0.9}
    first = world.submit("minnow", PROMPT, 10, **asks)
    world.run()
    second = world.submit("minnow", [*PROMPT, *world.tokens[first], 5], 10, **asks)
    world.run()
    assert world.cached_tokens[second] > 0
    assert_all_exact(world)
