"""Who orders the blocks: ghosts under plain LRU and under each predictor say which of them would hit more.

    look-up ─▶ sample of keys ─▶ a ghost for each ─▶ hits ─▶ after each window: who is in force from now on

All ghosts have the size of the real cache (times the sampling rate) and see the same keys, so the comparison holds
whoever is in force and whatever else evicts blocks: limits of tenants, erasure, an empty pool.

A predictor loses its place when LRU hit more in a window by over 0.2 % of the look-ups, and gets it back when it hits
more. Each time that it loses, it has to hit more for twice as many windows before it is trusted again, 15 at most: who
plays with the guard, by changing habits as soon as it has followed, gains less and less. A place that was held well for
as many windows makes good for one loss. Between predictors the record of some windows decides: one alone is chance.
"""

from collections.abc import Sequence

from engine.memory.eviction.ghost import SAMPLE_ALL, SAMPLE_BYTE, GhostCache
from engine.memory.eviction.sightings import BlockKey

LRU = 0  # the first contestant
_MOST_KEYS = 512  # of a ghost; a larger cache is judged by a sample of its keys, at 1/2, 1/4 … 1/256
_SLACK = 0.002
_FIRST_WINDOW = 1024  # sampled look-ups
_WINDOWS_OF_CAPACITY = 2  # a window sees so many times what a ghost holds: less would judge the past
_MOST_LOSSES = 4
_TRUST = 15  # windows
_FADING = 0.8  # of a record, with each window


class _Contestant:
    __slots__ = ("ghost", "hits", "losses", "record", "wins")

    def __init__(self) -> None:
        self.ghost = GhostCache()
        self.hits = 0  # in this window
        self.record = 0.0  # hits beyond those of LRU, in windows that fade
        self.wins = 0  # windows in a row in which it hit more than LRU
        self.losses = 0  # of its place

    @property
    def is_trusted(self) -> bool:
        return self.wins >= (1 << self.losses) - 1


class Contest:
    """Judges contestants by number; 0 is LRU, the first predictor is in force to begin with."""

    __slots__ = ("_contestants", "_num_seen", "in_force", "sample")

    def __init__(self, num_predictors: int) -> None:
        self._contestants = [_Contestant() for _ in range(1 + num_predictors)]
        self._num_seen = 0
        self.in_force = min(1, num_predictors)
        self.sample = SAMPLE_ALL  # of 256 keys, those that the ghosts see

    @property
    def num_ghosts(self) -> int:
        """Keys that the ghosts hold."""
        return sum(len(one.ghost) for one in self._contestants)

    def replace(self, number: int) -> None:
        """Let another one compete in a contestant's place, or for a new one: it has to win a window first."""
        fresh = _Contestant()
        fresh.losses = 1
        self._contestants[number:] = [fresh, *self._contestants[number + 1 :]]
        if self.in_force == number:
            self.in_force = LRU if number == 1 else 1
        self._begin()

    def drop(self, number: int) -> None:
        """Let the last contestant go."""
        del self._contestants[number:]
        if self.in_force >= number:
            self.in_force = number - 1
        self._begin()

    def seen(self, keys: Sequence[BlockKey], values: Sequence[Sequence[float]], capacity: int) -> None:
        """Let each ghost look up sampled keys of a prompt, deepest first, so that the deepest is the first to go.

        Args:
            keys: in order, of the sample.
            values: of each contestant, for each key.
            capacity: blocks of the real cache.
        """
        room = self._room(capacity)
        for one, worth in zip(self._contestants, values, strict=True):
            look_up = one.ghost.look_up
            one.hits += sum([look_up(keys[place], worth[place]) for place in range(len(keys) - 1, -1, -1)])
            one.ghost.shrink(room)
        self._num_seen += len(keys)
        if self._num_seen >= max(_FIRST_WINDOW, _WINDOWS_OF_CAPACITY * room):
            self._judge()

    def stored(self, key: BlockKey, values: Sequence[float], capacity: int) -> None:
        """Give the ghosts a block that nobody asked for, part of an answer, if it is of the sample."""
        if key[SAMPLE_BYTE] >= self.sample:
            return
        room = self._room(capacity)
        for one, value in zip(self._contestants, values, strict=True):
            one.ghost.store(key, value)
            if len(one.ghost) > 2 * room:  # `seen` shrinks them; long answers may come between two
                one.ghost.shrink(room)

    def fit(self, capacity: int) -> None:
        """Halve the sample until a ghost holds no more keys than it should, and start a new window."""
        if self._room(capacity) <= _MOST_KEYS or self.sample == 1:
            return
        while self._room(capacity) > _MOST_KEYS and self.sample > 1:
            self.sample //= 2
        for one in self._contestants:
            one.ghost.keep(self.sample)
        self._begin()

    def _room(self, capacity: int) -> int:
        """Return the keys that each ghost may hold."""
        return max(1, capacity * self.sample // SAMPLE_ALL)

    def _judge(self) -> None:
        """End a window: put the best of those that can be trusted in force."""
        lru, predictors = self._contestants[LRU], self._contestants[1:]
        slack = _SLACK * self._num_seen
        for number, one in enumerate(predictors, start=1):
            one.wins = one.wins + 1 if one.hits > lru.hits else 0
            one.record = _FADING * one.record + (one.hits - lru.hits)
            if number == self.in_force:
                self._try_place(one, is_lost=lru.hits > one.hits + slack)
        trusted = [number for number, one in enumerate(self._contestants) if number != LRU and one.is_trusted]
        best = max(trusted, key=lambda number: self._contestants[number].record, default=LRU)
        if self.in_force == LRU:
            if best != LRU and self._contestants[best].hits > lru.hits:
                self.in_force = best
        elif self._contestants[best].record > self._contestants[self.in_force].record + slack:
            self.in_force = best
        self._begin()

    def _try_place(self, one: _Contestant, *, is_lost: bool) -> None:
        if is_lost:
            one.losses, one.wins = min(one.losses + 1, _MOST_LOSSES), 0
            self.in_force = LRU
        elif one.losses and one.wins >= _TRUST:
            one.losses, one.wins = one.losses - 1, 0

    def _begin(self) -> None:
        self._num_seen = 0
        for one in self._contestants:
            one.hits = 0
