"""The memory of evicted keys."""

import os
from random import Random

from engine.memory.eviction.base import BlockKey
from engine.replay.history import MOST_COUNT, KeyHistory


def keys(count: int) -> list[BlockKey]:
    """Return keys as SHA-256 makes them."""
    return [BlockKey(os.urandom(32)) for _ in range(count)]


def test_the_last_key_is_remembered_with_its_return() -> None:
    """What was noted last is known, with one hit more: that it is asked for now."""
    history = KeyHistory()
    for key in keys(500):
        hits = Random().randint(0, 30)
        history.note(key, hits)
        assert history.recall(key) == min(hits + 1, MOST_COUNT)


def test_an_unknown_key_has_no_hits() -> None:
    """With the table full of others, hardly any unknown key is taken for a known one."""
    history = KeyHistory()
    for key in keys(20_000):
        history.note(key, 3)
    assert sum(history.recall(key) > 0 for key in keys(20_000)) < 25  # 5 expected


def test_as_many_evictions_as_cached_blocks_are_remembered() -> None:
    """Of the last n keys of a cache of n blocks three quarters are still known; of older ones less and less."""
    history, num_blocks = KeyHistory(), 3000
    history.fit(num_blocks)
    old, new = keys(20_000), keys(num_blocks)
    for key in old + new:
        history.note(key, 0)
    assert sum(history.recall(key) == 1 for key in new) > 0.75 * num_blocks
    assert sum(history.recall(key) > 0 for key in old[:5_000]) < 0.4 * 5_000


def test_growth_forgets_nothing() -> None:
    """A table that grows with its cache knows after it what it knew before."""
    history = KeyHistory()
    noted = keys(400)
    for number, key in enumerate(noted):
        history.note(key, number % 9)
    before = [history.recall(key) for key in noted]
    history.fit(50_000)
    assert [history.recall(key) for key in noted] == before
