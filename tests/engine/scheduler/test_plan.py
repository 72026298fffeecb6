"""Plans: batching, chunks, slots, and the tokens that come of them."""

import pytest

from engine.request import FinishReason, Priority
from engine.scheduler.targets import INTER_TOKEN_SECONDS, MIN_CHUNK_TOKENS
from tests.engine.world import World


def test_one_request_gets_its_tokens() -> None:
    """A request alone generates max_tokens tokens and leaves nothing behind."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", 10, 12)
    world.run()
    assert world.finished[request] is FinishReason.LENGTH
    assert len(world.tokens[request]) == world.granted[request] == 12
    world.assert_exact(request)
    world.assert_empty()


def test_requests_of_many_tenants_share_a_step() -> None:
    """Decodes of all running sequences go in one step, before prefill chunks."""
    world = World(budget=32)
    for tenant in ("a", "b", "c"):
        world.policy(tenant)
    early = [world.submit(tenant, 5, 20) for tenant in ("a", "b", "c")]
    world.step()
    late = world.submit("a", 20, 3)
    world.step()
    assert world.plan is not None
    assert [part.sequence for part in world.plan.sequences] == [*early, late]
    assert [len(part.token_ids) for part in world.plan.sequences] == [1, 1, 1, 20]
    world.run()
    for request in (*early, late):
        world.assert_exact(request)
    world.assert_empty()


def test_long_prompt_is_computed_in_chunks() -> None:
    """No step computes more than the token budget, and only the last chunk samples."""
    world = World(budget=16, num_blocks=64)
    world.policy("whale")
    request = world.submit("whale", 50, 2)
    sizes = []
    while world.step():
        assert world.plan is not None
        sizes.append([(len(part.token_ids), part.sampling is not None) for part in world.plan.sequences])
    assert sizes == [[(16, False)], [(16, False)], [(16, False)], [(2, True)], [(1, True)]]
    world.assert_exact(request)


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.STANDARD])
def test_running_streams_keep_their_target_beside_a_long_prompt(priority: Priority) -> None:
    """Chunks shrink to what lets the next token come in time, as soon as it is known how long steps take."""
    own_seconds = 0.03  # of a step without tokens: the target of the class is shorter than what SLOWDOWN allows
    world = World(num_blocks=512, budget=512, max_context=1500, token_seconds=0.001)
    world.policy("minnow", blocks=512, max_context_tokens=1500, priority=priority)
    world.policy("whale", blocks=512, max_context_tokens=1500, priority=Priority.BATCH)
    for length in (20, 60, 300, 5, 150, 400):
        world.submit("minnow", length, 1)
        world.run()
    world.submit("minnow", 8, 200, priority=priority)
    for _ in range(20):
        world.step(own_seconds)
    world.submit("whale", 1200, 1, priority=Priority.BATCH)
    times, sizes = [], []
    while len(world.finished) < 7:
        before = world.now
        world.step(own_seconds)
        assert world.plan is not None
        times.append(world.now - before)
        sizes.append(max(len(part.token_ids) for part in world.plan.sequences))
    target = INTER_TOKEN_SECONDS[(Priority.INTERACTIVE, Priority.STANDARD).index(priority)]
    assert max(times) <= 1.3 * target  # the first chunks still teach
    assert max(times[3:]) <= target
    assert max(sizes[3:]) > MIN_CHUNK_TOKENS


def test_without_streams_a_prompt_gets_the_whole_budget() -> None:
    """Nobody waits for a token: the chunk is as large as a step may be, however long that takes."""
    world = World(num_blocks=512, budget=512, max_context=1500, token_seconds=0.001)
    world.policy("whale", blocks=512, max_context_tokens=1500)
    for _ in range(2):
        world.submit("whale", 1200, 1)
        world.step()
        assert world.plan is not None
        assert world.plan.num_tokens == 512
        world.run()
