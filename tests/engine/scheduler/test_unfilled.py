"""Which blocks a plan has overwritten before its step."""

from engine.step import StepPlan
from tests.engine.world import World

SIZE = 4  # tokens of a block


def make_world() -> World:
    """Return a world of one tenant, with chunks of ten tokens."""
    world = World(num_blocks=16, budget=10)
    world.policy("a", blocks=16)
    return world


def plan_of(world: World) -> StepPlan:
    """Run one step and return its plan."""
    world.step()
    assert world.plan is not None
    return world.plan


def test_a_block_that_a_chunk_fills_whole_is_written_once() -> None:
    """The last one of the chunk is overwritten first, and those that later chunks will fill."""
    world = make_world()
    request = world.submit("a", list(range(17)), 3)
    plan = plan_of(world)
    table = world.scheduler.roster.sequences[request].table
    assert table is not None
    assert sorted(plan.poison) == sorted(table.blocks)
    assert plan.unfilled == tuple(table.blocks[10 // SIZE :])
    world.run()
    world.assert_exact(request)


def test_a_decode_has_its_new_block_overwritten() -> None:
    """Once for all the tokens that it has room for."""
    world = make_world()
    request = world.submit("a", [1, 2, 3, 4], 2 * SIZE + 1)
    assert plan_of(world).unfilled == ()
    plans = [plan_of(world) for _ in range(2 * SIZE)]
    assert [len(plan.unfilled) for plan in plans] == [1, 0, 0, 0] * 2
    assert all(plan.unfilled == plan.poison for plan in plans)
    world.run()
    world.assert_exact(request)


def test_what_is_free_is_left_alone() -> None:
    """Blocks that were given up are overwritten if something is erased, and else by who has them next."""
    world = make_world()
    first = world.submit("a", [1, 2, 3, 4, 5], 20)
    plan_of(world)
    world.submit("a", [6, 7, 8, 9, 10, 11], 10)
    plan_of(world)
    world.cancel(first)
    plan = plan_of(world)
    pool = world.scheduler.memory.pool
    assert any(pool.state(block) == 0 for block in plan.poison)
    assert all(pool.users(block) for block in plan.unfilled)
