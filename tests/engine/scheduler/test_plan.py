"""Plans: batching, chunks, slots, and the tokens that come of them."""

from engine.request import FinishReason
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
