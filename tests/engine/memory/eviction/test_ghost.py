"""The ghost holds the keys that a real cache under its policy would hold."""

from random import Random

import pytest

from engine.memory.eviction.base import EvictionPolicy
from engine.memory.eviction.ghost import GhostCache
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.reuse import ReuseWeighted
from engine.memory.eviction.simulate import Prompt, block_key, simulate
from tests.engine.memory.eviction.orders import Unguarded
from tests.engine.memory.eviction.traces import anything, chats

Trace = list[Prompt]


def ghost_hits(trace: Trace, capacity: int, policy: EvictionPolicy) -> int:
    """Replay a trace against a ghost, deepest block first."""
    ghost, hits = GhostCache(policy), 0
    for prompt in trace:
        for depth in range(len(prompt.blocks) - 1, -1, -1):
            hits += ghost.look_up(block_key(prompt.blocks[depth]), depth, prompt.at)
        ghost.shrink(capacity)
        assert len(ghost) <= capacity
    return hits


@pytest.mark.parametrize("make", [chats, anything])
def test_an_lru_ghost_hits_as_often_as_the_real_cache(make: object) -> None:
    """Without a tree and without blocks, the ghost's hits are those of a cache with prefixes, to the last one."""
    random = Random()
    trace = make(random, 400)  # type: ignore[operator]
    capacity = random.randint(10, 200)
    real = simulate(trace, capacity, Unguarded(LeastRecentlyUsed()))
    assert ghost_hits(trace, capacity, LeastRecentlyUsed()) == real.found


def test_a_ghost_of_our_policy_is_near_the_real_cache() -> None:
    """Under weights, where the tree keeps parents for their children's sake, it is within 2 % of the look-ups."""
    trace = chats(Random(), 1500)
    real = simulate(trace, 300, Unguarded(ReuseWeighted()))
    assert abs(ghost_hits(trace, 300, ReuseWeighted()) - real.found) < 0.02 * real.asked


def test_uses_do_not_pile_up() -> None:
    """A key that is used again and again takes the room of one."""
    ghost = GhostCache(LeastRecentlyUsed())
    for number in range(5000):
        ghost.look_up(block_key(number % 3), 0, float(number))
        ghost.shrink(8)
    assert len(ghost) == 3
    assert ghost.num_queued < 200


def test_a_smaller_sample_drops_what_it_leaves_out() -> None:
    """After the sample was cut to a quarter, about a quarter of the keys is left."""
    ghost = GhostCache(LeastRecentlyUsed())
    for number in range(2000):
        ghost.store(block_key(number), float(number))
    ghost.keep(64)
    assert 350 < len(ghost) < 650
    ghost.shrink(10)
    assert len(ghost) == 10
