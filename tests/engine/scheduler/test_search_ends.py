"""What ends or stops a search: lowered limits, cancels, deadlines, a policy that goes, a drain."""

import pytest

from engine.request import BeamParams, FinishReason
from tests.engine.scheduler.searches import PROMPT, assert_found, outputs_of
from tests.engine.world import World


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("moment", range(1, 12))
def test_a_lowered_limit_takes_the_whole_search(moment: int, ahead: bool) -> None:
    """At any moment: its beams leave together, and it finds the same once the limit is raised again."""
    world = World(block_size=4, budget=16, num_blocks=64, ahead=ahead)
    world.policy("minnow", blocks=64)
    search = world.submit("minnow", PROMPT, 10, n=2, beams=BeamParams(width=4))
    mate = world.submit("minnow", 5, 30)
    for _ in range(moment):
        world.step()
    world.policy("minnow", blocks=20)
    for _ in range(3):
        world.step()
        assert world.held("minnow") <= 20
    assert world.running() == [mate]
    world.policy("minnow", blocks=64)
    world.run()
    assert_found(world, search)
    world.assert_exact(mate)
    world.assert_empty()


def test_a_limit_that_leaves_it_room_leaves_it_alone() -> None:
    """What was promised to the beams is theirs, and a newer request gives way instead."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT[:9], 12, beams=BeamParams(width=3))
    world.step()
    other = world.submit("minnow", 20, 20)
    for _ in range(2):
        world.step()
    world.policy("minnow", blocks=16)
    world.step()
    assert other not in world.running()
    world.run()
    assert world.outputs[search][-1].num_preemptions == 0
    assert_found(world, search)
    world.assert_exact(other)


def test_a_lowered_max_running_takes_the_whole_search() -> None:
    """Fewer rows than beams: it waits until it may run as a whole, or its time is over."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 20, n=2, beams=BeamParams(width=4))
    for _ in range(8):
        world.step()
    world.policy("minnow", max_running=3)
    world.step()
    assert not world.running()
    world.now += 100.0
    world.run()
    last = world.outputs[search][-1]
    assert world.finished[search] is FinishReason.LENGTH
    assert "max_running" in last.message
    assert world.unseen[search] == 4 * 8
    assert len(world.tokens[search]) == 8, "the best so far, of the run before"
    assert len(world.tokens[search, 1]) == 8
    world.assert_empty()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 7])
def test_a_cancel_ends_the_whole_search(num_steps: int, ahead: bool) -> None:
    """Queued, computing its prompt, or with its beams in flight: one end for each output, and nothing is left."""
    world = World(block_size=4, budget=16, ahead=ahead)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 20, n=3, beams=BeamParams(width=4))
    for _ in range(num_steps):
        world.step()
    world.cancel(search)
    world.run()
    assert {world.finished[output] for output in outputs_of(world, search)} == {FinishReason.CANCELLED}
    assert world.unseen[search] == world.scheduler.output_tokens
    world.assert_empty()


def test_a_cancel_of_one_output_is_not_for_searches() -> None:
    """They have no output to end before they end themselves."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 6, n=2, beams=BeamParams(width=3))
    for _ in range(3):
        world.step()
        for index in (0, 1):
            world.scheduler.cancel([search], FinishReason.STOP, index)
    world.run()
    assert_found(world, search)


def test_a_deadline_returns_the_best_so_far() -> None:
    """Finished and running hypotheses compete, with the reason why it ended."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 30, n=3, beams=BeamParams(width=4), deadline=world.now + 0.055)
    world.run()
    outputs = [world.outputs[output][-1] for output in outputs_of(world, search)]
    assert all("deadline" in one.message and one.finish_reason is FinishReason.LENGTH for one in outputs)
    assert {len(one.token_ids) for one in outputs} == {6}
    assert [one.score for one in outputs] == sorted((one.score for one in outputs), reverse=True)
    assert len({one.token_ids for one in outputs}) == 3
    world.assert_empty()


def test_a_tenant_without_policy_loses_its_search() -> None:
    """Parked as a whole, and ended when no policy comes; started again when one does."""
    world = World(block_size=4, budget=64)
    for returns in (True, False):
        world.policy("minnow")
        search = world.submit("minnow", PROMPT, 12, n=2, beams=BeamParams(width=4))
        for _ in range(4):
            world.step()
        world.update(removed=("minnow",))
        world.step()
        assert not world.running()
        if returns:
            world.policy("minnow")
            world.run()
            assert_found(world, search)
        else:
            world.now += 10.0
            world.run()
            assert {world.finished[output] for output in outputs_of(world, search)} == {FinishReason.ERROR}
    world.assert_empty()


def test_a_drain_lets_a_search_go_on() -> None:
    """What runs goes on."""
    world = World(block_size=4, budget=16)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 12, n=2, beams=BeamParams(width=4))
    world.step()
    world.scheduler.drain(True)
    world.run()
    assert_found(world, search)
