"""The bound of virtual token counters: how far apart two tenants' service can drift while both want more.

Source: "Fairness in Serving Large Language Models" (Sheng et al., 2024), theorem 4.4: over any interval in which both
are backlogged, |W_f - W_g| ≤ 2 · max(w_p · L_in, w_q · M), with L_in the longest prompt and M the tokens of a batch.
"""

import random

import pytest

from engine.request import TenantId
from engine.scheduler.tenant import OUTPUT_COST, PREFILL_COST
from tests.engine.world import World

TENANTS = (TenantId("one"), TenantId("other"))
NUM_STEPS = 50


def drift(seed: int, *, tight: bool = False) -> float:
    """Return how far the service of two tenants drifted apart in a random schedule, as a share of the bound."""
    chance = random.Random(seed)
    longest_prompt, longest_output, rows = chance.randint(1, 60), chance.randint(1, 30), chance.randint(1, 8)
    num_blocks = chance.randint(24, 60) if tight else 512
    world = World(num_blocks=num_blocks, max_rows=rows, budget=chance.randint(rows, 80), audit=False)
    for tenant in TENANTS:
        world.policy(tenant, blocks=num_blocks)
    served = dict.fromkeys(TENANTS, 0.0)
    apart = [0.0]
    shapes = {tenant: (chance.randint(1, longest_prompt), chance.randint(1, longest_output)) for tenant in TENANTS}
    for _ in range(NUM_STEPS):
        for tenant in TENANTS:
            while world.scheduler.roster.tenant(tenant).num_waiting <= rows:  # one step cannot take them all
                prompt, output = shapes[tenant] if chance.random() < 0.5 else (longest_prompt, longest_output)
                world.submit(tenant, [chance.randrange(1000) for _ in range(chance.randint(1, prompt))], output)
        owners = {sequence: request.tenant for sequence, request in world.requests.items()}
        world.step()
        assert world.plan is not None
        for part in world.plan.sequences:
            is_decode = part.start >= len(world.requests[part.sequence].prompt)
            served[owners[part.sequence]] += 0 if is_decode else len(part.token_ids) * PREFILL_COST
            served[owners[part.sequence]] += OUTPUT_COST if part.sampling is not None else 0
        apart.append(served[TENANTS[0]] - served[TENANTS[1]])
    batch = min(rows * (longest_prompt + longest_output), num_blocks * world.shape.block_size)
    return (max(apart) - min(apart)) / (2 * max(PREFILL_COST * longest_prompt, OUTPUT_COST * batch))


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_service_of_backlogged_tenants_stays_within_the_bound(first: int) -> None:
    """Random prompts, outputs, batch sizes and budgets: over no interval does one tenant get more than the bound."""
    assert max(drift(seed) for seed in range(first, first + 100)) <= 1.0


@pytest.mark.parametrize("first", range(0, 100, 50))
def test_service_stays_within_the_bound_under_pressure(first: int) -> None:
    """One class, no guarantees, a pool for two or three requests: waiting for blocks adds nothing to the bound."""
    assert max(drift(seed, tight=True) for seed in range(first, first + 50)) <= 1.0


def makespan(seed: int, *, tenants: int) -> float:
    """Return the seconds in which a fixed set of requests is served, spread over so many tenants; one is FCFS."""
    chance = random.Random(seed)
    world = World(num_blocks=512, max_rows=8, budget=64, audit=False, token_seconds=0.0001)
    for number in range(tenants):
        world.policy(f"tenant-{number}", blocks=512, max_queued=1000)
    for number in range(200):
        prompt = [chance.randrange(1000) for _ in range(chance.randint(1, 100))]
        world.submit(f"tenant-{number % tenants}", prompt, chance.randint(1, 40))
    start = world.now
    while world.step(0.001):
        pass
    return world.now - start


@pytest.mark.parametrize("seed", range(3))
def test_fairness_costs_no_throughput(seed: int) -> None:
    """The same requests of two tenants take at most 1 % longer than in order of arrival."""
    assert makespan(seed, tenants=2) <= 1.01 * makespan(seed, tenants=1)
