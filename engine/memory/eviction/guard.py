"""A policy on probation: two ghosts, one under the policy and one under plain LRU, say which of them would hit more.

    look-up ─▶ sample of keys ─▶ ghost of the policy ─▶ hits ┐
                              └▶ ghost of LRU ───────▶ hits ┴─▶ after each window: who is in force from now on

Both ghosts have the size of the real cache (times the sampling rate) and see the same keys, so the comparison holds
whichever policy is in force and whatever else evicts blocks: limits of tenants, erasure, an empty pool. The policy
loses its place when LRU hit more in a window by over 0.2 % of the look-ups, and gets it back when it hit more.
"""

from collections.abc import Sequence

from engine.memory.eviction.base import BlockKey, CachedNode, EvictionPolicy
from engine.memory.eviction.ghost import SAMPLE_ALL, SAMPLE_BYTE, GhostCache
from engine.memory.eviction.history import KeyHistory
from engine.memory.eviction.lru import LeastRecentlyUsed

_MOST_KEYS = 512  # of a ghost; a larger cache is judged by a sample of its keys, at 1/2, 1/4 … 1/256
_SLACK = 0.002
_FIRST_WINDOW = 1024  # sampled look-ups
_WINDOWS_OF_CAPACITY = 2  # a window sees so many times what a ghost holds: less would judge the past


class GuardedOrder:
    """Implements EvictionOrder. One for each set of blocks that are ordered among themselves, such as an account."""

    __slots__ = (
        "_fallback",
        "_ghosts",
        "_history",
        "_hits",
        "_in_force",
        "_num_blocks",
        "_policy",
        "_sample",
        "_seen",
        "generation",
    )

    def __init__(self, policy: EvictionPolicy) -> None:
        self.generation = 0
        self._policy = policy
        self._fallback: EvictionPolicy = LeastRecentlyUsed()
        self._in_force = policy
        self._history = KeyHistory()
        self._num_blocks = 0
        self._sample = SAMPLE_ALL  # of 256 keys, those that the ghosts see
        self._ghosts = (GhostCache(policy), GhostCache(self._fallback))
        self._hits = [0, 0]
        self._seen = 0

    @property
    def in_force(self) -> str:
        """The name of the policy that orders blocks now."""
        return self._in_force.name

    @property
    def num_ghosts(self) -> int:
        """Keys that the ghosts hold."""
        return sum(len(ghost) for ghost in self._ghosts)

    def key(self, node: CachedNode) -> float:
        """Return the node's value under the policy in force; the lowest is evicted first."""
        return self._in_force.key(node)

    def looked_up(self, keys: Sequence[BlockKey], num_found: int, now: float) -> None:
        """Let both ghosts look the keys up. What the real cache found does not matter."""
        del num_found
        if self._capacity() > _MOST_KEYS and self._sample > 1:
            self._thin_out()
        sample = self._sample
        # Deepest first, so that of one prompt's blocks the deepest is the first to go.
        seen = [(depth, key) for depth, key in enumerate(keys) if key[SAMPLE_BYTE] < sample]
        for number, ghost in enumerate(self._ghosts):
            self._hits[number] += sum([ghost.look_up(key, depth, now) for depth, key in reversed(seen)])
            ghost.shrink(self._capacity())
        self._seen += len(seen)
        if self._seen >= max(_FIRST_WINDOW, _WINDOWS_OF_CAPACITY * self._capacity()):
            self._judge()

    def stored(self, key: BlockKey, now: float) -> int:
        """Count a block in; return its hits of earlier stays, its return among them."""
        self._num_blocks += 1
        if key[SAMPLE_BYTE] < self._sample:
            self._feed(key, now)
        return self._history.recall(key)

    def evicted(self, key: BlockKey, hits: int) -> None:
        """Count a block out and remember its hits."""
        self._history.fit(self._num_blocks)
        self._num_blocks -= 1
        self._history.note(key, hits)

    def _feed(self, key: BlockKey, now: float) -> None:
        """Give the ghosts a block that nobody asked for: part of an answer."""
        capacity = self._capacity()
        if capacity > _MOST_KEYS and self._sample > 1:
            self._thin_out()
        for ghost in self._ghosts:
            ghost.store(key, now)
            if len(ghost) > 2 * capacity:  # `looked_up` shrinks them; long answers may come between two
                ghost.shrink(capacity)

    def _capacity(self) -> int:
        """Return the keys that each ghost may hold."""
        return max(1, self._num_blocks * self._sample // SAMPLE_ALL)

    def _judge(self) -> None:
        """End a window: put the better policy in force."""
        policy, lru = self._hits
        if self._in_force is self._policy and lru > policy + _SLACK * self._seen:
            self._switch(self._fallback)
        elif self._in_force is self._fallback and policy > lru:
            self._switch(self._policy)
        self._hits, self._seen = [0, 0], 0

    def _thin_out(self) -> None:
        """Halve the sample until a ghost holds no more keys than it should, and start a new window."""
        while self._capacity() > _MOST_KEYS and self._sample > 1:
            self._sample //= 2
        for ghost in self._ghosts:
            ghost.keep(self._sample)
        self._hits, self._seen = [0, 0], 0

    def _switch(self, policy: EvictionPolicy) -> None:
        self._in_force = policy
        self.generation += 1
