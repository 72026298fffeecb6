"""Costs of swapping as a test wants them, in place of measured ones."""

import random

from engine.scheduler.step_time import StepTimeModel
from engine.scheduler.swap_cost import SwapCost
from tests.engine.world import BLOCK_BYTES, World


class Costs(SwapCost):
    """Says that swapping is free, and computing costs a second or nothing."""

    def __init__(self, share: float, seed: int = 0) -> None:
        """Let swapping be the cheaper way with a chance of `share`, at each question."""
        super().__init__(BLOCK_BYTES, StepTimeModel())
        self._share, self._chance = share, random.Random(seed)

    def store_seconds(self, num_blocks: int) -> float:
        """Return nothing."""
        return 0.0

    def load_seconds(self, num_blocks: int) -> float:
        """Return nothing."""
        return 0.0

    def compute_seconds(self, start: int, end: int) -> float:
        """Return more than nothing where swapping is to be cheaper."""
        return float(self._chance.random() < self._share)


def set_costs(world: World, share: float, seed: int = 0) -> World:
    """Put such costs into a world, and return it."""
    world.scheduler.roster.swapping.cost = Costs(share, seed)
    return world
