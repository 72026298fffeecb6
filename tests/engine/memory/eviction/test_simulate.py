"""The simulator and its oracle."""

from collections.abc import Callable
from random import Random

import pytest

from engine.memory.eviction.base import Predictor
from engine.memory.eviction.guard import GuardedOrder
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.reuse import ReuseWeighted
from engine.memory.eviction.simulate import Prompt, belady, simulate
from tests.engine.memory.eviction.orders import Moody, Unguarded, Unloved
from tests.engine.memory.eviction.traces import anything, chats, fashions

ROOMY = 10**6


def infinite(trace: list[Prompt]) -> int:
    """Count the blocks that were seen before."""
    seen: set[int] = set()
    found = 0
    for prompt in trace:
        found += sum(block in seen for block in prompt.blocks)
        seen.update(prompt.blocks)
    return found


def plain_lru(trace: list[Prompt], capacity: int) -> int:
    """Count hits of an LRU written down another way: by last use, deepest block first."""
    used: dict[int, tuple[int, int]] = {}
    found = 0
    for number, prompt in enumerate(trace):
        for block in prompt.blocks:
            if block not in used:
                break
            found += 1
        used.update({block: (number, -depth) for depth, block in enumerate(prompt.blocks)})
        for block in sorted(used, key=lambda block: used[block])[: max(0, len(used) - capacity)]:
            del used[block]
    return found


@pytest.mark.parametrize("make", [chats, anything, fashions])
def test_with_room_for_all_every_repeat_is_found(make: object) -> None:
    """Nothing is evicted, and policy and oracle find what was seen before."""
    trace = make(Random(), 300)  # type: ignore[operator]
    assert simulate(trace, ROOMY, GuardedOrder()).found == infinite(trace)
    assert belady(trace, ROOMY).found == infinite(trace)


@pytest.mark.parametrize("make", [chats, anything, fashions])
def test_lru_in_the_simulator_is_lru(make: object) -> None:
    """The tree of the simulator, leaves first, finds what a list sorted by last use finds."""
    random = Random()
    trace = make(random, 200)  # type: ignore[operator]
    capacity = random.randint(5, 100)
    assert simulate(trace, capacity, Unguarded(LeastRecentlyUsed())).found == plain_lru(trace, capacity)


@pytest.mark.parametrize("make_predictor", [LeastRecentlyUsed, ReuseWeighted, Unloved, Moody, None])
@pytest.mark.parametrize("make", [chats, anything, fashions])
def test_nothing_beats_the_oracle(make: object, make_predictor: Callable[[], Predictor] | None) -> None:
    """Whatever the trace, the size and the predictor, the oracle finds at least as much."""
    random = Random()
    trace = make(random, 400)  # type: ignore[operator]
    capacity = random.randint(5, 150)
    order = GuardedOrder() if make_predictor is None else GuardedOrder(make_predictor())
    assert simulate(trace, capacity, order).found <= belady(trace, capacity).found


def test_the_warm_up_is_served_and_not_counted() -> None:
    """Only later prompts count, and they find what the warm-up left."""
    trace = [Prompt(0.0, [1, 2, 3]), Prompt(1.0, [1, 2, 4])]
    rate = simulate(trace, 10, Unguarded(LeastRecentlyUsed()), warm_up=1)
    assert (rate.found, rate.asked) == (2, 3)
    assert belady(trace, 10, warm_up=1) == rate


def test_a_prompt_larger_than_the_cache_keeps_its_beginning() -> None:
    """Leaves go first: what is left of a prompt is a prefix that the next one can use."""
    trace = [Prompt(0.0, [1, 2, 3, 4]), Prompt(1.0, [1, 2, 3, 4])]
    assert simulate(trace, 2, Unguarded(LeastRecentlyUsed())).found == 2
