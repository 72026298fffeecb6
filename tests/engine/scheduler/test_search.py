"""Beam search in the engine: on shared blocks it finds what a search that keeps everything finds."""

import random
from dataclasses import replace

import pytest

from engine.errors import InvariantError
from engine.request import BeamParams, TenantId
from tests.engine.fake_runner import distribution
from tests.engine.scheduler.searches import PROMPT, STOPS, assert_found, outputs_of
from tests.engine.world import BLOCK_BYTES, World


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_finds_what_a_full_search_finds(seed: int, block_size: int, ahead: bool) -> None:
    """Random prompts, widths, penalties and stops, several at once, beside requests that sample."""
    chance = random.Random(seed)
    world = World(
        block_size=block_size,
        num_blocks=2048 // block_size,
        max_rows=40,
        budget=chance.randint(20, 64),
        ahead=ahead,
    )
    world.policy("minnow", blocks=2048 // block_size, max_running=40)
    mates, searches = [], []
    for _ in range(4):
        width = chance.randint(2, 6)
        beams = BeamParams(
            width=width,
            length_penalty=chance.choice((1.0, 0.0, -1.0, 2.0)),
            early_stopping=chance.random() < 0.5,
        )
        searches.append(
            world.submit(
                "minnow",
                [chance.randrange(1000) for _ in range(chance.randint(1, 50))],
                chance.choice((1, 2, chance.randint(3, 24))),
                n=chance.randint(1, width),
                beams=beams,
                stop_token_ids=chance.choice((frozenset(), STOPS)),
            )
        )
        mates.append(world.submit("minnow", chance.randint(1, 40), chance.randint(1, 20)))
        world.step()
    world.run()
    assert_found(world, *searches)
    for mate in mates:
        world.assert_exact(mate)
    world.assert_empty()


def test_beams_share_what_they_have_in_common() -> None:
    """The prompt is computed once and held once; each beam computes one token a step."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 12, beams=BeamParams(width=4))
    total = most = 0
    while world.step():
        assert world.plan is not None
        total += world.plan.num_tokens
        most = max(most, world.held("minnow"))
    _, num_steps = world.found(request)
    assert total == 42 + 4 * (num_steps - 1)
    assert most <= 42 // 4 + 4 * 4
    assert_found(world, request)


def test_reports_growth_step_by_step_and_hypotheses_at_the_end() -> None:
    """Nothing is seen before the end; what was generated is counted at once, and by tenant and core alike."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 10, n=2, beams=BeamParams(width=3), num_logprobs=0)
    world.run()
    news = world.outputs[request]
    assert news[0].admitted_max_tokens == 10
    assert [one.unseen_tokens for one in news] == [3] * 10
    assert all(not one.token_ids and one.finish_reason is None for one in news[:-1])
    assert world.scores[request] >= world.scores[request, 1]
    assert world.scheduler.output_tokens == 30
    assert world.scheduler.roster.tenant(TenantId("minnow")).output_tokens == 30
    for output in outputs_of(world, request):
        tokens = world.tokens[output]
        expected = [float(distribution([*PROMPT, *tokens[:place]])[token]) for place, token in enumerate(tokens)]
        assert world.logprobs[output] == expected
    assert_found(world, request)


def test_blocks_that_beams_share_are_metered_once() -> None:
    """One second a step: the meter shows what the account held, prompt and all, and not each beam's table in full."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 8, n=2, beams=BeamParams(width=4), namespace=b"")
    held = 0
    while world.step(1.0):
        if world.running():
            held += sum(world.scheduler.memory.pool.users(block) > 0 for block in range(64))
    metered = sum(world.outputs[output][-1].kv_byte_seconds for output in outputs_of(world, request)) / BLOCK_BYTES
    assert 0 < metered <= held + 8 * 4 + 4 * 4
    assert metered >= 8 * (42 // 4)
    assert world.outputs[request, 1][-1].kv_byte_seconds == 0.0


@pytest.mark.parametrize("namespace", [None, b""])
def test_the_prefix_cache_changes_nothing(namespace: bytes | None) -> None:
    """The same search again, on cached blocks of the first or without any."""
    world = World(block_size=4, budget=64, num_blocks=128)
    world.policy("minnow", blocks=128)
    again = []
    for _ in range(3):
        again.append(world.submit("minnow", PROMPT, 10, n=3, beams=BeamParams(width=5), namespace=namespace))
        world.run()
    assert_found(world, *again)
    assert (world.cached_tokens[again[2]] > 0) == (namespace is None)


def test_the_next_turn_finds_the_best_answer_cached() -> None:
    """A chat goes on with what the search returned: its blocks are in the tree."""
    world = World(block_size=2, budget=64, num_blocks=256)
    world.policy("minnow", blocks=256)
    request = world.submit("minnow", PROMPT, 10, beams=BeamParams(width=4))
    world.run()
    turn = world.submit("minnow", [*PROMPT, *world.tokens[request], 3, 4], 4)
    world.run()
    assert world.cached_tokens[turn] >= 42 + 8
    world.assert_exact(turn)


def test_a_search_through_a_share_group() -> None:
    """The head counts against the group, the beams against the tenant."""
    world = World(block_size=4, budget=64)
    world.policy("minnow", share_groups=("bank",))
    world.share("bank", PROMPT[:20])
    requests = [world.submit("minnow", PROMPT, 10, n=2, beams=BeamParams(width=4)) for _ in range(2)]
    world.run()
    assert_found(world, *requests)


def test_every_beams_token_is_charged() -> None:
    """The tenant's counter grows with all of them, so a search is no way around the order of service."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    tenant = world.scheduler.roster.tenant(TenantId("minnow"))
    world.submit("minnow", PROMPT, 10, beams=BeamParams(width=4))
    before = tenant.counter
    world.run()
    assert tenant.counter - before == 42 * tenant.prefill_cost + 40 * tenant.output_cost


def test_a_runner_that_returns_no_candidates_is_found_out() -> None:
    """A beam without log-probabilities must not pass for a sampled token."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    world.submit("minnow", 5, 10, beams=BeamParams(width=3))
    plan = world.scheduler.plan()
    assert plan is not None
    result = world.runner.launch(plan).wait()
    with pytest.raises(InvariantError, match="log-probabilities"):
        world.scheduler.commit(plan, replace(result, logprobs=()))
