"""The guard: a predictor that does worse than plain LRU loses its place, and gets it back."""

from collections.abc import Callable
from random import Random

import pytest

from engine.memory.eviction.base import BlockKey, Predictor
from engine.memory.eviction.guard import Foresight, GuardedOrder
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.reuse import ReuseWeighted
from engine.memory.eviction.simulate import Prompt, belady, block_key, simulate
from tests.engine.memory.eviction.orders import Moody, Unguarded, Unloved
from tests.engine.memory.eviction.traces import anything, chats, fashions

Make = Callable[[Random, int], list[Prompt]]


def lru_share(trace: list[Prompt], capacity: int) -> float:
    """Return the hit rate of plain LRU."""
    return simulate(trace, capacity, Unguarded(LeastRecentlyUsed())).share


def moved(trace: list[Prompt], after: list[Prompt]) -> list[Prompt]:
    """Return a trace that comes after another one, of other blocks."""
    shift = after[-1].at
    return [Prompt(at + shift, [block + 10**7 for block in blocks]) for at, blocks in trace]


def test_experience_beats_lru_on_chats() -> None:
    """On chats with a minute or two between turns, part of the gap to the oracle is closed, mostly a fifth."""
    trace = chats(Random(), 2000)
    ours, lru = simulate(trace, 300, GuardedOrder()).share, lru_share(trace, 300)
    assert ours - lru > 0.05 * (belady(trace, 300).share - lru)


def test_a_predictor_that_fails_costs_little() -> None:
    """Where old hits mislead, the predictor alone loses most hits; guarded it is near LRU after a window."""
    trace = fashions(Random(), 3500)
    guarded = GuardedOrder(ReuseWeighted())
    ours = simulate(trace, 100, guarded, warm_up=1500).share
    lru = simulate(trace, 100, Unguarded(LeastRecentlyUsed()), warm_up=1500).share
    assert simulate(trace, 100, Unguarded(ReuseWeighted()), warm_up=1500).share < lru - 0.2
    assert ours > lru - 0.02
    assert guarded.in_force == "lru"


@pytest.mark.parametrize("make_predictor", [Unloved, Moody])
def test_nonsense_is_found_out(make_predictor: Callable[[], Predictor]) -> None:
    """A predictor that knows nothing of chats has to go."""
    guarded = GuardedOrder(make_predictor())
    trace = chats(Random(), 2500)
    ours = simulate(trace, 300, guarded, warm_up=500).share
    assert ours > simulate(trace, 300, Unguarded(LeastRecentlyUsed()), warm_up=500).share - 0.02


def test_a_predictor_gets_its_place_back() -> None:
    """Misled, then among chats again: it is in force at the end, and the order changed twice."""
    bad = fashions(Random(), 1200)
    good = moved(chats(Random(), 2000), bad)
    guarded = GuardedOrder(ReuseWeighted())
    simulate(bad, 100, guarded)
    assert guarded.in_force == "lru"
    again = GuardedOrder(ReuseWeighted())
    simulate(bad + good, 100, again)
    assert again.in_force == "reuse"
    assert again.generation > guarded.generation


def test_a_new_generation_reorders() -> None:
    """The generation changes when, and only when, another one is in force."""
    guarded = GuardedOrder(Unloved())
    trace = fashions(Random(), 3000)
    seen = {(guarded.generation, guarded.in_force)}
    for prompt in trace:
        keys = [block_key(block) for block in prompt.blocks]
        guarded.looked_up(keys, 0, prompt.at)
        for key in keys:
            guarded.stored(key, prompt.at)
        for key in keys:
            guarded.evicted(key, 0)
        seen.add((guarded.generation, guarded.in_force))
    assert len({generation for generation, _ in seen}) == len(seen)


@pytest.mark.parametrize("make", [chats, anything, fashions])
def test_guarded_lru_is_lru(make: Make) -> None:
    """A guard over LRU itself changes nothing."""
    random = Random()
    trace = make(random, 600)
    capacity = random.randint(10, 150)
    guarded = GuardedOrder(LeastRecentlyUsed())
    assert simulate(trace, capacity, guarded).share == lru_share(trace, capacity)
    assert guarded.generation == 0


@pytest.mark.parametrize("make", [chats, anything, fashions])
@pytest.mark.parametrize("make_order", [GuardedOrder, lambda: GuardedOrder(Moody()), lambda: GuardedOrder(Unloved())])
def test_never_much_worse_than_lru(make: Make, make_order: Callable[[], GuardedOrder]) -> None:
    """Whatever the habits, the size and the predictor: 5 % of what LRU finds, and some windows to find that out."""
    random = Random()
    capacity = random.randint(20, 300)
    trace = make(random, 2500)
    ours, lru = simulate(trace, capacity, make_order()), simulate(trace, capacity, Unguarded(LeastRecentlyUsed()))
    assert ours.found > 0.95 * lru.found - 3 * max(1024, 2 * capacity)


def test_changing_habits_do_not_wear_the_guard_out() -> None:
    """Who changes habits as soon as the guard has followed, again and again, gains ever less by it."""
    random, trace = Random(), fashions(Random(), 600)
    for _ in range(7):
        trace += moved(chats(random, 400), trace)
        trace += moved(fashions(random, 600), trace)
    ours = simulate(trace, 100, GuardedOrder(ReuseWeighted()))
    lru = simulate(trace, 100, Unguarded(LeastRecentlyUsed()))
    assert ours.found > 0.9 * lru.found - 3 * 1024


def test_values_follow_who_is_in_force() -> None:
    """Other tiers get the seconds that the order adds to recency; none of what nobody has asked for, none under LRU."""
    guarded, keys = GuardedOrder(ReuseWeighted()), [block_key(number) for number in range(3)]
    for number in range(3):
        guarded.looked_up(keys[: number + 1], 0, 10.0 * number)
    assert guarded.values([*keys, block_key(99)], 30.0) == pytest.approx([200.0, 100.0, 0.0, 0.0])
    assert GuardedOrder(LeastRecentlyUsed()).values(keys, 30.0) == [0.0, 0.0, 0.0]


def test_part_of_an_answer_is_worth_what_it_continues() -> None:
    """A block that nobody has asked for yet is valued like the one before it."""
    guarded, keys = GuardedOrder(ReuseWeighted()), [block_key(number) for number in range(4)]
    for _ in range(3):
        guarded.looked_up(keys[:2], 0, 5.0)
    assert guarded.stored(keys[2], 6.0, keys[1]) == 0
    assert guarded.stored(keys[3], 6.0, block_key(99)) == 0
    values = guarded.values(keys, 6.0)
    assert values[2] == values[1] > 0
    assert values[3] == 0


def test_a_block_starts_with_the_hits_of_earlier_stays() -> None:
    """What was asked for before, cached or not, counts when the block is computed again."""
    guarded, key = GuardedOrder(), block_key(7)
    for number in range(4):
        guarded.looked_up([key], 0, float(number))
        assert guarded.stored(key, float(number)) == number
        guarded.evicted(key, number)


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
    guarded = GuardedOrder()
    for number in range(5_000):
        guarded.stored(block_key(number), float(number))
        if number >= 100:
            guarded.evicted(block_key(number - 100), 0)
        assert guarded.num_ghosts <= 2 * (2 * 101 + 1)


def test_a_huge_cache_is_judged_too() -> None:
    """With more blocks than the smallest sample can thin out, windows still end, and a bad predictor is found out."""
    guarded, random = GuardedOrder(Unloved()), Random()
    keys = [block_key(number) for number in range(160_000)]
    for key in keys:
        guarded.stored(key, 0.0)
    hot = [BlockKey(key[:8] + bytes(1) + key[9:]) for key in keys[:50]]  # in the smallest sample
    cold = (BlockKey(key[:8] + bytes(1) + key[9:]) for key in keys[1000:])
    for number in range(2000):
        asked = [*random.sample(hot, 5), next(cold)]
        guarded.looked_up(asked, 0, float(number))
    assert guarded.in_force == "lru"


def test_a_model_competes_and_wins() -> None:
    """A model that comes while the worker runs has to hit more than the others in a window; without it they go on."""
    foresight = Foresight()
    guarded = GuardedOrder(foresight=foresight)
    trace = fashions(Random(), 3000)  # where recency is all that counts
    simulate(trace[:1500], 100, guarded)
    foresight.model = LeastRecentlyUsed()
    simulate(trace[1500:1510], 100, guarded)
    assert guarded.in_force in ("table", "lru")
    foresight.model = None
    simulate(trace[1510:], 100, guarded)
    assert guarded.in_force in ("table", "lru")
