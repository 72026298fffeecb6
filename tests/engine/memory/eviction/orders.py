"""Eviction orders and predictors for tests."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from engine.memory.eviction.base import BlockKey, CachedNode, View
from engine.memory.eviction.sightings import MOST_SCORE, Bytes, to_bytes
from engine.replay.history import KeyHistory


class Policy(Protocol):
    """What orders blocks by what the tree knows of them alone."""

    name: str

    def key(self, node: CachedNode) -> float:
        """Return a block's value."""
        ...


class Unguarded:
    """Follows its policy through thick and thin; remembers evicted hits."""

    def __init__(self, policy: Policy) -> None:
        self.generation = 0
        self._policy = policy
        self._history = KeyHistory()
        self._num_blocks = 0

    def key(self, key: BlockKey, node: CachedNode) -> float:
        """Return the policy's key."""
        return self._policy.key(node)

    def looked_up(self, keys: Sequence[BlockKey], num_found: int, now: float) -> None:
        """Take no notice."""

    def stored(self, key: BlockKey, now: float, before: BlockKey | None = None) -> int:
        """Return remembered hits."""
        self._num_blocks += 1
        self._history.fit(self._num_blocks)
        return self._history.recall(key)

    def evicted(self, key: BlockKey, hits: int) -> None:
        """Remember hits."""
        self._num_blocks -= 1
        self._history.note(key, hits)


class Unloved:
    """A predictor that gives up first what was asked for most: hardly any is worse."""

    name = "unloved"
    seconds = 300.0

    def key(self, node: CachedNode) -> float:
        """Return the value of a block."""
        return node.last_use - 300.0 * min(node.hits, 6)

    def judge(self, view: View) -> Bytes:
        """Return the same as scores."""
        return to_bytes(-np.minimum(view.sight.hits, 6).astype(np.float64))


class Moody:
    """A predictor that says anything, and something else with each prompt."""

    name = "moody"
    seconds = 1000.0

    def __init__(self) -> None:
        self._random = np.random.default_rng()

    def judge(self, view: View) -> Bytes:
        """Return random scores."""
        return to_bytes(self._random.uniform(-MOST_SCORE, MOST_SCORE, len(view.sight.hits)))
