"""Order between tenants and classes."""

import pytest

from engine.request import FinishReason, Priority
from tests.engine.world import World


def served(world: World, tenant: str) -> int:
    """Return the output tokens of a tenant so far."""
    return world.scheduler.roster.tenants[tenant].output_tokens  # type: ignore[index]


def test_service_follows_the_weights() -> None:
    """Two tenants that always want more get tokens in proportion to their weights."""
    world = World(num_blocks=256, max_rows=4, budget=16)
    world.policy("light", weight=1.0)
    world.policy("heavy", weight=3.0)
    for _ in range(3000):
        for tenant in ("light", "heavy"):
            if world.scheduler.roster.tenant(tenant).num_waiting < 4:  # type: ignore[arg-type]
                world.submit(tenant, 6, 8)
        world.step()
    share = served(world, "heavy") / served(world, "light")
    assert 2.5 < share < 3.5


def test_idling_saves_up_nothing() -> None:
    """A tenant that slept while another worked starts level with it, not with a claim on the past."""
    world = World(num_blocks=256, max_rows=2, budget=16)
    world.policy("busy")
    world.policy("sleeper")
    for _ in range(500):
        if world.scheduler.roster.tenant("busy").num_waiting < 4:  # type: ignore[arg-type]
            world.submit("busy", 6, 8)
        world.step()
    before = served(world, "busy")
    for _ in range(400):
        for tenant in ("busy", "sleeper"):
            if world.scheduler.roster.tenant(tenant).num_waiting < 4:  # type: ignore[arg-type]
                world.submit(tenant, 6, 8)
        world.step()
    gained = served(world, "busy") - before
    assert 0.8 < gained / served(world, "sleeper") < 1.25


def test_a_minnow_goes_before_the_next_chunk_of_a_whale() -> None:
    """A small prompt that arrives in the middle of a long prefill waits one step at most."""
    world = World(num_blocks=128, budget=16)
    world.policy("whale")
    world.policy("minnow")
    world.submit("whale", 200, 4)
    for _ in range(3):
        world.step()
    minnow = world.submit("minnow", 8, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH


def test_better_classes_go_first() -> None:
    """With one place to run, the interactive request runs before standard and batch ones that came earlier."""
    world = World(max_rows=1)
    for tenant in ("a", "b", "c"):
        world.policy(tenant, priority=Priority.INTERACTIVE)
    batch = world.submit("a", 4, 2, priority=Priority.BATCH)
    standard = world.submit("b", 4, 2, priority=Priority.STANDARD)
    interactive = world.submit("c", 4, 2, priority=Priority.INTERACTIVE)
    world.run()
    assert list(world.finished) == [interactive, standard, batch]


def test_a_tenant_cannot_ask_for_a_better_class_than_its_policy() -> None:
    """`interactive` from a batch tenant is batch."""
    world = World(max_rows=1)
    world.policy("cheat", priority=Priority.BATCH)
    world.policy("honest", priority=Priority.STANDARD)
    cheat = world.submit("cheat", 4, 2, priority=Priority.INTERACTIVE)
    honest = world.submit("honest", 4, 2)
    world.run()
    assert list(world.finished) == [honest, cheat]


def test_ageing_gives_every_class_progress() -> None:
    """A batch request under an endless interactive load runs after a few seconds."""
    world = World(max_rows=1)
    for tenant in ("batch", "live"):
        world.policy(tenant, priority=Priority.INTERACTIVE)
    waiting = world.submit("batch", 4, 2, priority=Priority.BATCH)
    start = world.now
    while waiting not in world.finished:
        if world.scheduler.roster.tenant("live").num_waiting < 3:  # type: ignore[arg-type]
            world.submit("live", 4, 2, priority=Priority.INTERACTIVE)
        world.step(0.05)
        assert world.now - start < 6.0
    assert world.now - start > 3.9


def test_a_backlog_gives_no_claim() -> None:
    """A tenant whose requests have waited for long in its own queue does not pass a tenant that has had less."""
    world = World(max_rows=1)
    world.policy("whale")
    world.policy("minnow")
    for _ in range(50):
        world.submit("whale", 8, 4)
    for _ in range(10):
        world.step(2.0)
    minnow = world.submit("minnow", 8, 1)
    others = len(world.finished)
    while minnow not in world.finished:
        world.step(0.01)
    assert len(world.finished) - others <= 3


def test_old_requests_keep_no_blocks_from_a_tenant_with_less_service() -> None:
    """A whale that waits for a large part of the pool does not hold a minnow up that fits beside what runs."""
    world = World(block_size=4, num_blocks=32, budget=64)
    world.policy("whale")
    world.policy("minnow")
    for _ in range(4):
        world.submit("whale", 80, 20)
    for _ in range(10):
        world.step(1.0)
    assert len(world.running()) == 1
    minnow = world.submit("minnow", 4, 1)
    for _ in range(2):
        world.step()
    assert world.finished[minnow] is FinishReason.LENGTH


def test_recomputation_is_not_charged_again() -> None:
    """A preempted tenant does not pay for what it computes a second time."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", 20, 10)
    for _ in range(3):
        world.step()
    tenant = world.scheduler.roster.tenant("minnow")  # type: ignore[arg-type]
    before = tenant.counter
    world.scheduler.roster.preempt(world.scheduler.roster.sequences[request], -1, world.now)
    world.step()
    assert tenant.counter == before + tenant.output_cost


@pytest.mark.parametrize("weight", [1e-300, 5e-324])
def test_a_weight_near_zero_does_not_end_fairness_for_others(weight: float) -> None:
    """Whatever is pushed, counters stay such that two other tenants still share evenly afterwards."""
    world = World(num_blocks=256, max_rows=2, budget=16)
    world.policy("feather", weight=weight)
    world.submit("feather", 6, 8)
    world.run()
    for tenant in ("light", "heavy"):
        world.policy(tenant)
    for _ in range(600):
        for tenant, length in (("light", 2), ("heavy", 16)):
            if world.scheduler.roster.tenant(tenant).num_waiting < 4:  # type: ignore[arg-type]
                world.submit(tenant, 6, length)
        world.step()
    assert 0.6 < served(world, "heavy") / served(world, "light") < 2.5
