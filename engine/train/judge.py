"""How good a predictor is: does it rank what comes back above what does not, and does a cache under it hit more."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.memory.eviction.base import Predictor
from engine.memory.eviction.guard import GuardedOrder
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.sightings import Floats
from engine.memory.eviction.simulate import HitRate, Prompt, simulate
from engine.train.asked import Ask
from engine.train.examples import Examples

HORIZON_SECONDS = 360.0
SHARES = (0.01, 0.03, 0.1)  # of all blocks that were ever asked for: sizes of the caches that are compared
_LEAST_BLOCKS = 32

MakeOrder = Callable[[], GuardedOrder]


class Story(NamedTuple):
    """What was asked of one account, for the simulator."""

    prompts: list[Prompt]
    num_blocks: int  # different ones
    warm_up: int  # prompts that are served and not counted


def auc(scores: Floats, examples: Examples) -> float:
    """Return the chance that a block that came back in time scores higher than one that did not; 0.5: knows nothing.

    Ties count as half. Blocks of which that is not known are left out.
    """
    back = examples.came_back & (examples.seconds <= HORIZON_SECONDS)
    known = back | (examples.seconds >= HORIZON_SECONDS)
    values, weights, back = scores[known], examples.weights[known].astype(np.float64), back[known]
    _, places = np.unique(values, return_inverse=True)
    lost = np.bincount(places, weights * ~back)
    won = np.bincount(places, weights * back, minlength=len(lost))
    below = np.cumsum(lost) - lost / 2
    total = won.sum() * lost.sum()
    return float((won * below).sum() / total) if total else 0.5


def stories(asks: Sequence[Ask], since: float) -> list[Story]:
    """Return what was asked, account by account; what came before `since` is the warm-up."""
    accounts: defaultdict[str, list[Prompt]] = defaultdict(list)
    warm_up: defaultdict[str, int] = defaultdict(int)
    for ask in asks:
        accounts[ask.account].append(Prompt(ask.at, ask.blocks))
        warm_up[ask.account] += ask.at < since
    return [
        Story(prompts, len({block for prompt in prompts for block in prompt.blocks}), warm_up[account])
        for account, prompts in accounts.items()
    ]


def hit_rates(told: Sequence[Story], make_order: MakeOrder) -> list[float]:
    """Return the share of blocks that caches of each of the `SHARES` find, over all accounts."""
    rates = []
    for share in SHARES:
        sums = HitRate(0, 0)
        for story in told:
            capacity = max(_LEAST_BLOCKS, int(share * story.num_blocks))
            rate = simulate(story.prompts, capacity, make_order(), warm_up=story.warm_up)
            sums = HitRate(sums.found + rate.found, sums.asked + rate.asked)
        rates.append(sums.share)
    return rates


def lru() -> GuardedOrder:
    """Return plain LRU."""
    return GuardedOrder(LeastRecentlyUsed())


def under(predictor: Predictor) -> MakeOrder:
    """Return what makes orders under a predictor, guarded as on a worker."""
    return lambda: GuardedOrder(predictor)


def mean(rates: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the mean over sizes."""
    return float(np.mean(rates))
