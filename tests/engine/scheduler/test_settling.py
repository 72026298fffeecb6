"""What a worker says of a lowered limit, against what comes of it: `settled` follows within the predicted time."""

import random

import pytest

from tests.engine.world import World

TENANTS = ("whale", "shark", "minnow")


class Story:
    """Random traffic of three tenants, whose limits move."""

    def __init__(self, seed: int, *, ahead: bool, slabs: int) -> None:
        self.choose = random.Random(seed)
        self.world = World(
            num_blocks=160,
            budget=48,
            max_rows=32,
            blocks_a_plan=self.choose.choice((1, 4, 32)),
            token_seconds=0.0005,
            ahead=ahead,
            num_slabs=slabs,
        )
        self._slabs = slabs
        self._live = 0
        for tenant in TENANTS:
            self.limit(tenant, 160)

    def limit(self, tenant: str, blocks: int) -> None:
        """Set a tenant's hard limit."""
        self.world.policy(tenant, blocks=blocks, slabs=self._slabs, max_running=self.choose.choice((2, 8, 16)))

    def step(self) -> None:
        """Let requests come, and run a step."""
        world = self.world
        while len(world.requests) - len(world.finished) - len(world.refused) < 20:
            prompt, length = self.choose.randrange(1, 60), self.choose.randrange(1, 40)
            world.submit(self.choose.choice(TENANTS), prompt, length)
        world.step(0.002 + 0.006 * self.choose.random())

    def lower(self) -> tuple[int, float, float]:
        """Move a limit; return what was above it, the time that was predicted and the time that it took."""
        world = self.world
        self.limit(self.choose.choice(TENANTS), self.choose.choice((0, 5, 20, 60, 160)))
        applied_at = world.now
        self.step()
        over, predicted = world.scheduler.over_bytes, world.scheduler.settle_seconds
        for _ in range(500):
            if world.scheduler.enforcement.take_settled() is not None:
                return over, predicted, world.now - applied_at
            self.step()
        raise AssertionError("it does not settle")


@pytest.mark.parametrize("slabs", [0, 200], ids=["recomputed", "swapped"])
@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
@pytest.mark.parametrize("seed", range(6))
def test_settled_within_the_predicted_time(seed: int, ahead: bool, slabs: int) -> None:
    """Whoever is above it, however many plans that takes, under random traffic and steps of any length."""
    story = Story(seed, ahead=ahead, slabs=slabs)
    for _ in range(60):  # steps from which the model of step times learns
        story.step()
    over_any = 0
    for _ in range(25):
        over, predicted, took = story.lower()
        over_any += over > 0
        if over:
            assert took <= predicted
        for _ in range(story.choose.randrange(12)):
            story.step()
    assert over_any > 3
