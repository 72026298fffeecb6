"""Log-probabilities: one for each token of a request that asks, none for others, from prefills and decodes alike."""

import pytest

from engine.request import FinishReason, TenantId
from tests.engine.fake_runner import distribution
from tests.engine.world import ShortOutputs, World


def expected(world: World, prompt: list[int], tokens: list[int]) -> list[float]:
    """Return what the fake model gives each of these tokens after those before it."""
    return [float(distribution([*prompt, *tokens[:place]])[token]) for place, token in enumerate(tokens)]


@pytest.mark.parametrize("budget", [3, 64])
def test_every_token_of_a_request_that_asks_has_one(budget: int) -> None:
    """Beside a request that does not ask, and from the first token on, wherever chunks end."""
    world = World(budget=budget)
    world.policy("minnow")
    prompt = list(range(11))
    asks = world.submit("minnow", prompt, 9, num_logprobs=0)
    quiet = world.submit("minnow", 5, 12)
    world.run()
    assert len(world.tokens[asks]) == 9
    assert world.logprobs[asks] == expected(world, prompt, world.tokens[asks])
    assert world.logprobs[quiet] == []
    world.assert_exact(asks)
    world.assert_exact(quiet)


def test_every_output_of_a_request_has_its_own() -> None:
    """With n outputs each is reported with those of its own tokens, preempted or not."""
    world = World(block_size=4, num_blocks=18)
    world.policy("minnow", blocks=18)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    prompt = list(range(30))
    request = world.submit("minnow", prompt, 25, n=4, num_logprobs=2)
    world.run()
    assert world.scheduler.roster.num_preemptions > 0
    for output in (request, *((request, index) for index in range(1, 4))):
        assert len(world.logprobs[output]) == 25
        assert world.logprobs[output] == expected(world, prompt, world.tokens[output])


def test_the_stop_token_has_one_too() -> None:
    """It is among the tokens that are reported, so its log-probability is as well."""
    world = World()
    world.policy("minnow")
    probe = world.submit("minnow", 6, 8, seed=4)
    world.run()
    stop = world.tokens[probe][5]
    prompt = list(world.requests[probe].prompt)
    again = world.submit("minnow", prompt, 8, seed=4, stop_token_ids=frozenset({stop}), num_logprobs=0)
    world.run()
    assert world.finished[again] is FinishReason.STOP
    assert world.logprobs[again] == expected(world, prompt, world.tokens[again])
