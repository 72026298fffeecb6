"""The guard: a policy that does worse than plain LRU loses its place, and gets it back."""

from random import Random

import pytest

from engine.memory.eviction.base import BlockKey, EvictionPolicy
from engine.memory.eviction.guard import GuardedOrder
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.reuse import ReuseWeighted
from engine.memory.eviction.simulate import Prompt, belady, block_key, simulate
from tests.engine.memory.eviction.orders import Newest, Unguarded
from tests.engine.memory.eviction.traces import anything, chats, fashions


def lru_share(trace: list[Prompt], capacity: int) -> float:
    """Return the hit rate of plain LRU."""
    return simulate(trace, capacity, Unguarded(LeastRecentlyUsed())).share


@pytest.mark.parametrize("capacity", [100, 300])
def test_our_policy_beats_lru_on_chats(capacity: int) -> None:
    """On chats with a minute or two between turns, at least a tenth of the gap to the oracle is closed."""
    trace = chats(Random(), 2000)
    ours, lru = simulate(trace, capacity, GuardedOrder(ReuseWeighted())).share, lru_share(trace, capacity)
    assert ours - lru > 0.1 * (belady(trace, capacity).share - lru)


@pytest.mark.parametrize("policy", [ReuseWeighted(), Newest()], ids=lambda policy: policy.name)
def test_a_policy_that_fails_costs_little(policy: EvictionPolicy) -> None:
    """Where old hits mislead, the policy alone loses most hits; guarded it is near LRU after a window."""
    trace = fashions(Random(), 3500)
    guarded = GuardedOrder(policy)
    ours = simulate(trace, 100, guarded, warm_up=1500).share
    lru = simulate(trace, 100, Unguarded(LeastRecentlyUsed()), warm_up=1500).share
    assert simulate(trace, 100, Unguarded(policy), warm_up=1500).share < lru - 0.2
    assert ours > lru - 0.02
    assert guarded.in_force == "lru"


def test_a_policy_gets_its_place_back() -> None:
    """Misled, then among chats again: the policy is in force at the end, and the order changed twice."""
    bad = fashions(Random(), 1200)
    shift = bad[-1].at
    good = [Prompt(at + shift, [block + 10**7 for block in blocks]) for at, blocks in chats(Random(), 2000)]
    guarded = GuardedOrder(ReuseWeighted())
    simulate(bad, 100, guarded)
    assert guarded.in_force == "lru"
    again = GuardedOrder(ReuseWeighted())
    simulate(bad + good, 100, again)
    assert again.in_force == "reuse"
    assert again.generation > guarded.generation


def test_a_new_generation_reorders() -> None:
    """The generation changes when, and only when, another policy is in force."""
    guarded = GuardedOrder(Newest())
    trace = fashions(Random(), 3000)
    seen = {(guarded.generation, guarded.in_force)}
    for end in range(0, 3000, 50):
        for prompt in trace[end : end + 50]:
            keys = [block_key(block) for block in prompt.blocks]
            guarded.looked_up(keys, 0, prompt.at)
            for key in keys:
                guarded.stored(key, prompt.at)
            for key in keys:
                guarded.evicted(key, 0)
            seen.add((guarded.generation, guarded.in_force))
    assert len({generation for generation, _ in seen}) == len(seen)


@pytest.mark.parametrize("make", [chats, anything, fashions])
def test_guarded_lru_is_lru(make: object) -> None:
    """A guard over LRU itself changes nothing."""
    random = Random()
    trace = make(random, 600)  # type: ignore[operator]
    capacity = random.randint(10, 150)
    guarded = GuardedOrder(LeastRecentlyUsed())
    assert simulate(trace, capacity, guarded).share == lru_share(trace, capacity)
    assert guarded.generation == 0


def test_a_large_cache_is_judged_by_a_sample() -> None:
    """With 20,000 cached blocks the ghosts keep about 500 keys each, however many are looked up."""
    guarded = GuardedOrder(ReuseWeighted())
    keys = [block_key(number) for number in range(20_000)]
    for key in keys:
        guarded.stored(key, 0.0)
    guarded.looked_up(keys, 0, 1e6)
    assert 300 < guarded.num_ghosts < 1600


def test_ghosts_stay_bounded_without_look_ups() -> None:
    """One long answer after another fills and evicts blocks while no request comes: the ghosts do not pile up."""
    guarded = GuardedOrder(ReuseWeighted())
    for number in range(5_000):
        guarded.stored(block_key(number), float(number))
        if number >= 100:
            guarded.evicted(block_key(number - 100), 0)
        assert guarded.num_ghosts <= 2 * (2 * 101 + 1)


def test_a_huge_cache_is_judged_too() -> None:
    """With more blocks than the smallest sample can thin out, windows still end, and a bad policy is found out."""
    guarded, random = GuardedOrder(Newest()), Random()
    keys = [block_key(number) for number in range(160_000)]
    for key in keys:
        guarded.stored(key, 0.0)
    hot = [BlockKey(key[:8] + bytes(1) + key[9:]) for key in keys[:50]]  # new ones, in the smallest sample
    for number in range(500):
        guarded.looked_up(random.sample(hot, 5), 0, float(number))
    assert guarded.in_force == "lru"
