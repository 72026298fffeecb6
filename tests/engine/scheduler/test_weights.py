"""A tenant of weight 2 gets twice the service of one of weight 1, whatever either of them sends, and however tight."""

import random

import pytest

from engine.request import TenantId
from engine.scheduler.predict import OutputLengths
from tests.engine.world import ShortOutputs, World

LIGHT, HEAVY = TenantId("light"), TenantId("heavy")
WARM_UP, STEPS = 200, 2000
LONG_PROMPTS, LONG_OUTPUTS = ((40, 80), (1, 3)), ((1, 6), (20, 40))  # tokens of the prompt, of the output
ANYTHING = ((1, 80), (1, 40))
WORK = {
    "prompts": (LONG_PROMPTS, LONG_PROMPTS),
    "outputs": (LONG_OUTPUTS, LONG_OUTPUTS),
    "anything": (ANYTHING, ANYTHING),
    "prompts against outputs": (LONG_PROMPTS, LONG_OUTPUTS),
    "outputs against prompts": (LONG_OUTPUTS, LONG_PROMPTS),
}

Shape = tuple[tuple[int, int], tuple[int, int]]


def shares(world: World, light: Shape, heavy: Shape, *, lengths: type[OutputLengths] = OutputLengths) -> float:
    """Return the service of the heavy tenant by that of the light one, while both always have requests in line."""
    chance = random.Random(7)
    most = world.shape.num_blocks
    world.policy(LIGHT, weight=1.0, blocks=most, max_running=16)
    world.policy(HEAVY, weight=2.0, blocks=most, max_running=16)
    tenants = {name: world.scheduler.roster.tenant(name) for name in (LIGHT, HEAVY)}
    before = dict.fromkeys(tenants, 0.0)
    for tenant in tenants.values():
        tenant.lengths = lengths()
    for count in range(WARM_UP + STEPS):
        for name, (prompt, output) in ((LIGHT, light), (HEAVY, heavy)):
            while tenants[name].num_waiting < 4:
                world.submit(name, chance.randint(*prompt), chance.randint(*output), namespace=b"")
        world.step()
        if count == WARM_UP:
            before = {name: tenant.service for name, tenant in tenants.items()}
    gained = {name: tenant.service - before[name] for name, tenant in tenants.items()}
    return gained[HEAVY] / gained[LIGHT]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("work", WORK)
def test_service_follows_the_weights(work: str, ahead: bool) -> None:
    """Where compute is what both want: 2.0 ± 0.1."""
    world = World(num_blocks=512, max_rows=4, budget=32, audit=False, ahead=ahead)
    assert shares(world, *WORK[work]) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("work", WORK)
def test_service_follows_the_weights_where_memory_is_short(work: str, ahead: bool) -> None:
    """Where blocks are what both want, more is admitted than fits, and many are preempted: 2.0 ± 0.1 all the same.

    A large request that waits for blocks does not lose its tenant's turns to small ones that fit into every gap.
    """
    world = World(num_blocks=40, max_rows=12, budget=48, audit=False, ahead=ahead)
    assert shares(world, *WORK[work], lengths=ShortOutputs) == pytest.approx(2.0, abs=0.1)
    if work != "prompts":
        assert world.scheduler.roster.num_preemptions > 50
