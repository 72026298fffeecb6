"""Can a tenant tell by its time to first token whether another tenant has sent a prompt? It must not."""

import random
from bisect import bisect_left, bisect_right

import pytest

from tests.engine.world import World

PROBES = 1000


def first_token_seconds(world: World, tenant: str, prompt: list[int]) -> float:
    """Send a prompt and return the time until its first token."""
    sent = world.now
    request = world.submit(tenant, prompt, 1)
    while not world.tokens[request]:
        world.step(0.001)
    return world.now - sent


def auc(positive: list[float], negative: list[float]) -> float:
    """Return how well a threshold tells two classes apart: 0.5 is not at all, 1 always, whichever is larger."""
    ordered = sorted(negative)
    wins = sum(bisect_left(ordered, value) + bisect_right(ordered, value) for value in positive)
    share = wins / 2 / len(positive) / len(negative)
    return max(share, 1 - share)


def attack(victim: str, attacker: str, *, shared: bool = False, ahead: bool = False) -> float:
    """Return the attacker's AUC over prompts that the victim has, or has not, sent just before."""
    chance = random.Random(4)
    world = World(
        num_blocks=512, block_size=4, budget=32, audit=False, token_seconds=0.0001, max_context=256, ahead=ahead
    )
    for tenant in {victim, attacker}:
        world.policy(tenant, blocks=512, share_groups=("bank",) if shared else ())
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * PROBES):
        prompt = [chance.randrange(1000) for _ in range(chance.randint(60, 120))]
        if shared:
            world.share("bank", prompt[:56], blocks=64, soft=64)
        asked = number % 2 == 0
        decoy = [chance.randrange(1000) for _ in range(len(prompt))]
        first_token_seconds(world, victim, prompt if asked else decoy)
        noise = chance.gauss(0.0, 0.001)  # the network's
        times[asked].append(first_token_seconds(world, attacker, prompt) + noise)
    return auc(times[True], times[False])


@pytest.mark.parametrize("ahead", [False, True])
def test_another_tenants_prompts_leave_no_trace(ahead: bool) -> None:
    """Two tenants, equal prompts: guessing by time is no better than chance."""
    assert attack("minnow", "whale", ahead=ahead) <= 0.55


@pytest.mark.parametrize(("attacker", "shared"), [("minnow", False), ("whale", True)])
def test_the_probe_works_where_sharing_is_meant(attacker: str, shared: bool) -> None:
    """Within a tenant, and through a registered prefix of a share group, a hit is plain to see."""
    assert attack("minnow", attacker, shared=shared) >= 0.95
