"""Lowered limits come into force: nothing is granted above them, what is above them goes bit by bit, nobody ends."""

import pytest

from engine.request import BeamParams, FinishReason, TenantId
from tests.engine.world import World


def blocks(world: World, tenant: str = "whale") -> int:
    """Return all blocks of a tenant."""
    account = world.scheduler.memory.accounts.get(TenantId(tenant))
    return account.blocks if account is not None else 0


def fill(world: World, count: int, *, prompt: int = 15) -> None:
    """Leave so many prompts in the whale's cache."""
    for _ in range(count):
        world.submit("whale", prompt, 1)
    world.run()


def settle(world: World, limit: int = 200) -> int:
    """Step until the policy in force has settled; return the number of steps."""
    for count in range(limit):
        if world.scheduler.enforcement.take_settled() is not None:
            return count
        world.step()
    raise AssertionError("it does not settle")


@pytest.mark.parametrize("ahead", [False, True])
def test_a_large_overage_drains_bit_by_bit(ahead: bool) -> None:
    """No plan gives back more than it may, the account never rises meanwhile, and another tenant's steps go on."""
    world = World(num_blocks=200, budget=128, blocks_a_plan=5, ahead=ahead)
    world.policy("whale", blocks=200, max_running=16)
    world.policy("minnow", blocks=200)
    fill(world, 30)
    minnow = world.submit("minnow", 4, 60)
    whales = [world.submit("whale", 15, 60) for _ in range(6)]
    for _ in range(4):
        world.step()
    before = blocks(world)
    assert before > 100
    world.policy("whale", blocks=20, max_running=16)
    while world.scheduler.enforcement.take_settled() is None:
        evicted, num_preemptions = world.scheduler.memory.supply.num_evicted, world.scheduler.roster.num_preemptions
        told = len(world.tokens[minnow])
        world.step()
        assert world.scheduler.memory.supply.num_evicted - evicted <= 5 + 8  # those that use takes the place of
        assert world.scheduler.roster.num_preemptions - num_preemptions <= 2
        assert len(world.tokens[minnow]) == told + 1
        assert blocks(world) <= before
        before = blocks(world)
        assert not world.finished.keys() & {*whales, minnow}
    assert before <= 20
    world.run()
    for request in whales:
        assert len(world.tokens[request]) == 60
        world.assert_exact(request)


def test_what_is_over_and_how_long_it_takes_is_predicted() -> None:
    """The overage when the policy came, and as many plans as it takes at most; none where nobody is above."""
    world = World(num_blocks=200, budget=64, blocks_a_plan=10)
    world.policy("whale", blocks=200)
    assert settle(world) == 1
    assert (world.scheduler.over_bytes, world.scheduler.settle_seconds) == (0, 0.0)
    fill(world, 20)
    held = blocks(world)
    world.policy("whale", blocks=10)
    world.step()
    assert world.scheduler.over_bytes == (held - 10) * 100
    predicted = world.scheduler.enforcement.num_plans
    assert world.scheduler.settle_seconds > 0.01 * predicted
    assert (held - 10) // 10 <= 1 + settle(world) <= predicted
    assert blocks(world) == 10
    world.policy("whale", blocks=9)
    world.step()
    assert world.scheduler.over_bytes == 100
    assert world.scheduler.enforcement.take_settled() is not None


def test_an_overtaken_policy_never_settles() -> None:
    """The newer one settles when nobody is above any limit, those that only the older one named among them."""
    world = World(num_blocks=200, budget=64, blocks_a_plan=4)
    for tenant in ("whale", "minnow"):
        world.policy(tenant, blocks=200)
    fill(world, 20)
    settle(world)
    world.policy("whale", blocks=40)
    world.step()
    assert world.scheduler.enforcement.take_settled() is None
    world.policy("minnow", blocks=100)
    assert settle(world) > 3
    assert blocks(world) == 40
    assert world.scheduler.enforcement.take_settled() is None


def test_a_raised_limit_ends_the_drain() -> None:
    """What was not given back by then stays."""
    world = World(num_blocks=200, budget=64, blocks_a_plan=4)
    world.policy("whale", blocks=200)
    fill(world, 20)
    world.policy("whale", blocks=0)
    world.step()
    left = blocks(world)
    assert left > 50
    world.policy("whale", blocks=200)
    assert settle(world) == 1
    assert blocks(world) == left


@pytest.mark.parametrize("limits", [{"blocks": 12}, {"max_running": 2}])
def test_nothing_starts_above_a_lowered_limit(limits: dict[str, int]) -> None:
    """While what is over still runs, what waits waits, and nobody takes a block for a token that is due."""
    world = World(block_size=4, num_blocks=64, budget=128, blocks_a_plan=1)
    world.policy("whale")
    requests = [world.submit("whale", 15, 12) for _ in range(6)]
    for _ in range(2):
        world.step()
    running = world.running()
    late = world.submit("whale", 4, 2)
    world.policy("whale", **{"blocks": 64, "max_running": 8} | limits)
    for _ in range(3):
        world.step()
        assert len(world.running()) < len(running)
        assert set(world.running()) <= set(running)
        running = world.running()
    assert late not in running
    world.run()
    assert all(len(world.tokens[one]) == 12 for one in requests)
    assert world.finished[late] is FinishReason.LENGTH


def test_a_decode_within_the_limit_goes_on_while_the_cache_drains() -> None:
    """Its next block takes the place of a cached one."""
    world = World(block_size=4, num_blocks=200, budget=64, blocks_a_plan=1)
    world.policy("whale", blocks=200)
    fill(world, 20)
    request = world.submit("whale", 4, 40)
    world.step()
    world.policy("whale", blocks=20)
    for count in range(2, 30):
        before = blocks(world)
        world.step()
        assert len(world.tokens[request]) == count
        assert blocks(world) < before
    world.run()
    world.assert_exact(request)


def test_a_search_is_under_the_limit_after_one_plan() -> None:
    """Beams cannot wait: with them, a tenant is brought down at once."""
    world = World(num_blocks=64, budget=64, blocks_a_plan=1)
    world.policy("whale")
    searched = world.submit("whale", 8, 8, beams=BeamParams(width=3))
    others = [world.submit("whale", 15, 12) for _ in range(4)]
    for _ in range(3):
        world.step()
    world.policy("whale", blocks=14)
    world.step()
    assert world.held("whale") <= 14
    world.run()
    for request in (searched, *others):
        world.assert_exact(request)


def test_a_tenant_that_is_gone_gives_its_cache_back_bit_by_bit() -> None:
    """Its name is forgotten when the last block is, and a policy that comes back finds what is left."""
    world = World(num_blocks=200, budget=64, blocks_a_plan=10)
    world.policy("whale", blocks=200)
    fill(world, 20)
    held = blocks(world)
    world.update(removed=("whale",))
    world.step()
    assert blocks(world) == held - 10
    world.policy("whale", blocks=200)
    assert settle(world) == 1
    assert blocks(world) == held - 10
    world.update(removed=("whale",))
    settle(world)
    assert not world.scheduler.roster.tenants
    assert world.scheduler.memory.pool.num_free == 200


def test_requests_of_a_tenant_without_policy_are_set_aside_bit_by_bit() -> None:
    """They stop over some plans, and go on with their tokens when the policy comes back."""
    world = World(num_blocks=64, budget=64, blocks_a_plan=4)
    world.policy("whale")
    requests = [world.submit("whale", 15, 12) for _ in range(5)]
    for _ in range(2):
        world.step()
    world.update(removed=("whale",))
    world.step()
    assert 0 < len(world.running()) < 5
    settle(world)
    assert not world.running()
    assert blocks(world) == 0
    world.policy("whale")
    world.run()
    for request in requests:
        assert len(world.tokens[request]) == 12
        world.assert_exact(request)
    world.assert_empty()
