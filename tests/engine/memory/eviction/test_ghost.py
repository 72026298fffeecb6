"""The ghost holds the keys that a real cache under its policy would hold."""

from random import Random

from engine.memory.eviction.ghost import GhostCache
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.simulate import block_key, simulate
from tests.engine.memory.eviction.orders import Unguarded
from tests.engine.memory.eviction.traces import anything, chats


def test_an_lru_ghost_hits_as_often_as_the_real_cache() -> None:
    """Without a tree and without blocks, the ghost's hits are those of a cache with prefixes, to the last one."""
    random = Random()
    for make in (chats, anything):
        trace, capacity = make(random, 400), random.randint(10, 200)
        ghost, hits = GhostCache(), 0
        for prompt in trace:
            hits += sum([ghost.look_up(block_key(block), prompt.at) for block in reversed(prompt.blocks)])
            ghost.shrink(capacity)
            assert len(ghost) <= capacity
        assert hits == simulate(trace, capacity, Unguarded(LeastRecentlyUsed())).found


def test_the_least_valuable_keys_go_first() -> None:
    """Whatever came when: those of the lowest values go, of equal ones the first used."""
    ghost = GhostCache()
    values = {number: float(number % 7) for number in range(70)}
    for number, value in values.items():
        ghost.look_up(block_key(number), value)
    ghost.shrink(15)
    left = {number for number in values if ghost.look_up(block_key(number), values[number])}
    assert left == {number for number in values if values[number] >= 5} - {5, 12, 19, 26, 33}


def test_uses_do_not_pile_up() -> None:
    """A key that is used again and again takes the room of one."""
    ghost = GhostCache()
    for number in range(5000):
        ghost.look_up(block_key(number % 3), float(number))
        ghost.shrink(8)
    assert len(ghost) == 3
    assert ghost.num_queued < 200


def test_a_smaller_sample_drops_what_it_leaves_out() -> None:
    """After the sample was cut to a quarter, about a quarter of the keys is left."""
    ghost = GhostCache()
    for number in range(2000):
        ghost.store(block_key(number), float(number))
    ghost.keep(64)
    assert 350 < len(ghost) < 650
    ghost.shrink(10)
    assert len(ghost) == 10
