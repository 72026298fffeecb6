"""The key functions: what goes before what."""

from random import Random

import pytest

from engine.memory.eviction.base import CachedNode
from engine.memory.eviction.lru import LeastRecentlyUsed
from engine.memory.eviction.reuse import BONUS_SECONDS, MOST_HITS, ReuseWeighted
from tests.engine.memory.eviction.orders import Policy


def node(last_use: float, hits: int = 0) -> CachedNode:
    """Return a candidate."""
    return CachedNode(block=1, last_use=last_use, hits=hits, children=0, users=0, depth=3, num_tokens=64)


def test_lru_looks_at_the_last_use_alone() -> None:
    """However often a block was hit, the one used longer ago goes first."""
    policy = LeastRecentlyUsed()
    assert policy.key(node(1.0, hits=100)) < policy.key(node(2.0))


def test_a_hit_is_worth_its_bonus_of_recency() -> None:
    """A block with one hit outlives one without that was used up to the bonus later, and no longer."""
    policy = ReuseWeighted()
    hit = policy.key(node(0.0, hits=1))
    assert policy.key(node(BONUS_SECONDS - 1)) < hit < policy.key(node(BONUS_SECONDS + 1))


def test_no_number_of_hits_keeps_a_block_for_ever() -> None:
    """Hits beyond the most that count add nothing, so that a block out of use goes in the end."""
    policy = ReuseWeighted()
    assert policy.key(node(0.0, hits=10**6)) < policy.key(node(BONUS_SECONDS * MOST_HITS + 1))


@pytest.mark.parametrize("policy", [LeastRecentlyUsed(), ReuseWeighted()], ids=lambda policy: policy.name)
def test_a_parent_never_goes_before_its_child(policy: Policy) -> None:
    """A prefix is used and hit at least whenever what continues it is: its key is never lower."""
    random = Random()
    for _ in range(200):
        child = node(random.uniform(0, 1e6), random.randint(0, 20))
        parent = child._replace(last_use=child.last_use + random.uniform(0, 9), hits=child.hits + random.randint(0, 5))
        assert policy.key(parent) >= policy.key(child)
