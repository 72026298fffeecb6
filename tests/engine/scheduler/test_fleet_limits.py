"""A worker's grant is a part of what the fleet may have: what fits the fleet's limit waits for the grant to follow."""

from engine.request import FinishReason, RefusalCode
from tests.engine.world import BLOCK_BYTES, World

FLEET = {"fleet_hard_bytes": 20 * BLOCK_BYTES, "fleet_max_running": 8}


def test_what_fits_the_fleet_waits_for_the_grant() -> None:
    """It is neither refused nor cut short, it counts as waiting, and it runs when the grant has grown."""
    world = World(block_size=4)
    world.policy("whale", blocks=2, **FLEET)
    request = world.submit("whale", 20, 40)
    for _ in range(3):
        world.step()
    assert not world.refused
    assert not world.running()
    world.policy("whale", blocks=20, **FLEET)
    world.run()
    assert world.finished[request] is FinishReason.LENGTH
    assert len(world.tokens[request]) == 40
    world.assert_exact(request)


def test_what_fits_no_grant_is_refused_at_once() -> None:
    """The refusal names the fleet's limit, which is what a tenant knows."""
    world = World(block_size=4)
    world.policy("whale", blocks=2, **FLEET)
    request = world.submit("whale", 20, 80)
    world.step()
    assert world.refused[request].code is RefusalCode.KV_LIMIT
    assert f"{20 * BLOCK_BYTES} bytes" in world.refused[request].message


def test_a_worker_that_knows_no_fleet_judges_by_its_grant() -> None:
    """As one that is alone."""
    world = World(block_size=4)
    world.policy("whale", blocks=2)
    request = world.submit("whale", 20, 40)
    world.step()
    assert world.refused[request].code is RefusalCode.KV_LIMIT


def test_several_outputs_that_fit_the_fleet_may_try_again() -> None:
    """More outputs than the grant's places are no request that could never run: the queue is full, for now."""
    world = World(block_size=4)
    world.policy("whale", blocks=20, **FLEET | {"max_running": 1, "max_queued": 1})
    request = world.submit("whale", 4, 4, n=4)
    world.step()
    assert world.refused[request].code is RefusalCode.QUEUE_FULL
