"""Searches and memory: their room is promised before they run, and they leave as a whole."""

import pytest

from engine.request import BeamParams, FinishReason, TenantId
from tests.engine.scheduler.searches import PROMPT, assert_found, outputs_of
from tests.engine.world import ShortOutputs, World


def test_searches_run_one_after_the_other_where_only_one_fits() -> None:
    """By memory, by rows and by max_running; none is preempted, and beams never wait for each other."""
    for limits in ({"num_blocks": 30}, {"max_rows": 4}, {"max_running": 5}):
        max_running = limits.pop("max_running", 8)
        world = World(**{"block_size": 4, "budget": 64} | limits)  # type: ignore[arg-type]
        world.policy("minnow", blocks=world.shape.num_blocks, max_running=max_running)
        requests = [world.submit("minnow", PROMPT[: 21 + index], 12, beams=BeamParams(width=4)) for index in range(3)]
        while world.step():
            assert len(world.running()) <= 4
        assert world.scheduler.roster.num_preemptions == 0
        assert_found(world, *requests)
        world.assert_empty()


def test_a_search_gets_its_rows_in_a_crowd() -> None:
    """Single requests come all the time and would fill each row that gets free; the search has its turn."""
    world = World(block_size=4, num_blocks=256, max_rows=4, budget=64)
    world.policy("minnow", blocks=128, max_running=4)
    world.policy("whale", blocks=128, max_running=4)
    for _ in range(4):
        world.submit("whale", 5, 8)
        world.step(0.5)
        world.step(0.5)
    request = world.submit("minnow", PROMPT, 6, beams=BeamParams(width=4))
    for _ in range(60):
        world.submit("whale", 5, 8)
        world.step(0.5)
    assert_found(world, request)
    world.run()


def test_growth_of_others_never_takes_what_beams_were_promised() -> None:
    """In a pool where everybody outgrows what was predicted, samplers are preempted and the search is not."""
    world = World(block_size=4, num_blocks=40, max_rows=12)
    world.policy("minnow", blocks=40)
    world.policy("whale", blocks=40)
    for tenant in ("minnow", "whale"):
        world.scheduler.roster.tenant(TenantId(tenant)).lengths = ShortOutputs()
    search = world.submit("minnow", PROMPT[:13], 14, n=3, beams=BeamParams(width=3))
    others = [world.submit(tenant, 6, 40) for tenant in ("minnow", "whale", "whale", "minnow")]
    world.run()
    assert world.scheduler.roster.num_preemptions > 0
    assert world.outputs[search][-1].num_preemptions == 0
    assert_found(world, search)
    for other in others:
        world.assert_exact(other)


def test_a_sequence_without_its_reserve_steps_back_behind_a_search() -> None:
    """One that was preempted too often and then lost its reserve to a lowered limit: what beams have stays theirs."""
    world = World(block_size=4, num_blocks=64, budget=64)
    world.policy("minnow")
    sampler = world.submit("minnow", 8, 40)
    world.step()
    world.scheduler.roster.sequences[sampler].evictions = 3
    search = world.submit("minnow", PROMPT[:20], 12, n=2, beams=BeamParams(width=4))
    world.step()
    world.policy("minnow", blocks=20)
    world.run()
    assert world.outputs[search][-1].num_preemptions == 0
    assert world.outputs[sampler][-1].num_preemptions > 0
    assert_found(world, search)
    world.assert_exact(sampler)


def test_a_guarantee_takes_the_whole_search() -> None:
    """Another tenant claims what it was guaranteed: all beams leave, start again, find the same, and count once."""
    world = World(block_size=4, num_blocks=32, max_rows=12, budget=64)
    world.policy("whale", blocks=32)
    world.policy("minnow", blocks=32, soft=20)
    search = world.submit("whale", PROMPT[:20], 16, n=2, beams=BeamParams(width=5))
    for _ in range(6):
        world.step()
    counted = world.unseen[search]
    assert counted > 0
    claim = world.submit("minnow", 60, 12)
    world.step()
    assert len(world.running()) == 1
    world.run()
    assert world.outputs[search][-1].num_preemptions == 1
    assert_found(world, search)
    world.assert_exact(claim)
    world.assert_empty()


@pytest.mark.parametrize("soft", [5, 10, 20, 30])
def test_a_guarantee_takes_what_a_search_is_promised(soft: int) -> None:
    """A search that uses less than its tenant's guarantee, and is promised more than that, gives way at once."""
    world = World(block_size=4, num_blocks=64, budget=256)
    world.policy("whale", soft=soft)
    world.policy("minnow", soft=30)
    search = world.submit("whale", 8, 60, beams=BeamParams(width=3))
    for _ in range(3):
        world.step()
    account = world.scheduler.memory.accounts.get(TenantId("whale"))
    assert account is not None
    assert account.used <= soft < account.reserved
    minnow = world.submit("minnow", 100, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    world.run()
    assert_found(world, search)


def test_what_a_search_is_promised_costs_no_neighbour_within_the_guarantee() -> None:
    """The tenant's other sequences, which use less than its guarantee, go on when its search gives way."""
    world = World(block_size=4, num_blocks=64, budget=256)
    world.policy("whale", soft=20)
    world.policy("minnow", soft=30)
    search = world.submit("whale", 8, 60, beams=BeamParams(width=3))
    world.step()
    mate = world.submit("whale", 8, 24)
    for _ in range(3):
        world.step()
    minnow = world.submit("minnow", 100, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    assert world.running() == [mate]
    world.run()
    assert_found(world, search)
    world.assert_exact(mate)


def test_a_guarantee_takes_the_rows_of_a_search() -> None:
    """With every row taken by borrowers' beams, a tenant within its guarantee runs in the next step."""
    world = World(block_size=4, num_blocks=200, max_rows=8, budget=256)
    world.policy("whale", blocks=200)
    world.policy("minnow", soft=30)
    searches = [world.submit("whale", 8, 40, beams=BeamParams(width=4)) for _ in range(2)]
    for _ in range(3):
        world.step()
    assert len(world.running()) == 8
    minnow = world.submit("minnow", 100, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    world.run()
    assert_found(world, *searches)


def test_a_search_that_is_always_in_the_way_ends_with_what_it_has() -> None:
    """It needs more than guarantees leave it, and gives way each time they are claimed: not for ever."""
    world = World(block_size=4, num_blocks=32, max_rows=12, budget=64)
    world.policy("whale", blocks=32)
    world.policy("minnow", blocks=32, soft=20)
    search = world.submit("whale", PROMPT[:20], 16, n=2, beams=BeamParams(width=5))
    claims = []
    for round_number in range(4):
        for _ in range(4 + round_number):
            world.step()
        claims.append(world.submit("minnow", 60, 4))
        world.step()
        while claims[-1] not in world.finished:
            world.step()
    world.run()
    last = world.outputs[search][-1]
    assert last.num_preemptions == 4
    assert "kv_soft_bytes" in last.message
    for output in outputs_of(world, search):
        assert world.finished[output] is FinishReason.LENGTH
        assert 0 < len(world.tokens[output]) < 16
    assert world.unseen[search] == 5 * len(world.tokens[search])
    for claim in claims:
        world.assert_exact(claim)
    world.assert_empty()
