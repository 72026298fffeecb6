"""An eviction order that foretells reuse, and judges itself.

    prompt ─▶ sightings (what is known of its blocks) ─▶ predictors ─▶ scores, kept with the sightings
                                                     └▶ contest (ghosts) ─▶ whose scores order the blocks

Of the account's own experience there is always a table (hazard.py). Where a model was trained (model.py) it competes
too. Plain LRU is what everything falls back to.
"""

from collections.abc import Sequence

import numpy as np

from engine.memory.eviction.base import BlockKey, CachedNode, Predictor, View
from engine.memory.eviction.contest import LRU, Contest
from engine.memory.eviction.features import DAY_SECONDS, RATE_BLOCKS, Moment
from engine.memory.eviction.ghost import SAMPLE_BYTE
from engine.memory.eviction.hazard import HazardTable, classes_of
from engine.memory.eviction.sightings import NO_SCORE, SCORE_STEPS, Bytes, Sightings, names_of


class Foresight:
    """What all accounts of a worker have in common: the model, which may be exchanged at any time, and the hour."""

    def __init__(self, *, offset: float = 0.0) -> None:
        """Start without a model. `offset`: from the scheduler's clock to unix seconds."""
        self.model: Predictor | None = None
        self._offset = offset

    def day_seconds(self, now: float) -> float:
        """Return the seconds since midnight, UTC."""
        return (now + self._offset) % DAY_SECONDS


class GuardedOrder:
    """Implements EvictionOrder and ReuseValue. One for each set of blocks that are ordered among themselves."""

    __slots__ = (
        "_contest",
        "_factors",
        "_foresight",
        "_model",
        "_num_blocks",
        "_predictors",
        "_reuse_rate",
        "_sightings",
        "_table",
        "generation",
    )

    def __init__(self, *predictors: Predictor, foresight: Foresight | None = None) -> None:
        """Start empty.

        Args:
            predictors: instead of the hazard table and the worker's model: two at most.
            foresight: the worker's.
        """
        self.generation = 0
        self._foresight = foresight or Foresight()
        self._table: HazardTable | None = None if predictors else HazardTable()
        self._predictors: list[Predictor] = list(predictors) if self._table is None else [self._table]
        self._model: Predictor | None = None
        self._contest = Contest(len(self._predictors))
        self._sightings = Sightings()
        self._num_blocks = 0
        self._reuse_rate = 0.0
        self._factors = self._seconds_a_step()

    @property
    def in_force(self) -> str:
        """The name of what orders blocks now."""
        number = self._contest.in_force
        return "lru" if number == LRU else self._predictors[number - 1].name

    @property
    def num_ghosts(self) -> int:
        """Keys that the ghosts hold."""
        return self._contest.num_ghosts

    def key(self, key: BlockKey, node: CachedNode) -> float:
        """Return the block's value, in seconds of the scheduler's clock; the lowest is evicted first."""
        number = self._contest.in_force
        if number == LRU:
            return node.last_use
        return node.last_use + (self._sightings.score(key, number - 1) - NO_SCORE) * self._factors[number]

    def values(self, keys: Sequence[BlockKey], now: float) -> list[float]:
        """Return for each block the seconds that it is worth more than a usual one; 0 under plain LRU."""
        del now
        number = self._contest.in_force
        if number == LRU:
            return [0.0] * len(keys)
        score, factor = self._sightings.score, self._factors[number]
        return [(score(key, number - 1) - NO_SCORE) * factor for key in keys]

    def looked_up(self, keys: Sequence[BlockKey], num_found: int, now: float) -> None:
        """Judge the blocks of a prompt. What the real cache found does not matter."""
        del num_found
        if not keys:
            return
        if self._table is not None and self._model is not self._foresight.model:
            self._exchange_model()
        self._contest.fit(self._num_blocks)
        names = names_of(keys)
        sight = self._sightings.look(names, now)
        share = min(1.0, len(keys) / RATE_BLOCKS)
        view = View(sight, Moment(self._foresight.day_seconds(now), self._reuse_rate))
        scores = [_falling(predictor.judge(view)) for predictor in self._predictors]
        self._reuse_rate += (sight.num_known / len(keys) - self._reuse_rate) * share
        classes = classes_of(sight)
        if self._table is not None:
            self._table.learn(sight, classes, now)
        self._sightings.note(names, sight, now, classes, scores)
        self._compete(keys, scores, now)

    def stored(self, key: BlockKey, now: float, before: BlockKey | None = None) -> int:
        """Count a block in; return how often it was asked for before."""
        self._num_blocks += 1
        self._sightings.fit(self._num_blocks)
        hits = self._sightings.recall(key)
        if hits is None:
            self._sightings.follow(key, before, now)
        self._contest.fit(self._num_blocks)
        if key[SAMPLE_BYTE] < self._contest.sample:
            score = self._sightings.score
            values = [now + (score(key, n) - NO_SCORE) * self._factors[n + 1] for n in range(len(self._predictors))]
            self._contest.stored(key, [now, *values], self._num_blocks)
        return hits or 0

    def evicted(self, key: BlockKey, hits: int) -> None:
        """Count a block out; what was seen of it is remembered."""
        del key, hits
        self._num_blocks -= 1

    def _compete(self, keys: Sequence[BlockKey], scores: Sequence[Bytes], now: float) -> None:
        sample, generation = self._contest.sample, self._contest.in_force
        places = [place for place, key in enumerate(keys) if key[SAMPLE_BYTE] < sample]
        if places:
            values = [[now] * len(places)]
            for score, factor in zip(scores, self._factors[1:], strict=True):
                values.append((now + (score[places].astype(np.float64) - NO_SCORE) * factor).tolist())
            self._contest.seen([keys[place] for place in places], values, self._num_blocks)
        self.generation += self._contest.in_force != generation

    def _exchange_model(self) -> None:
        """Let another model compete from now on, or none."""
        assert self._table is not None, "else there is no model"
        in_force = self._contest.in_force
        self._model = self._foresight.model
        if self._model is None:
            self._predictors = [self._table]
            self._contest.drop(2)
        else:
            self._predictors = [self._table, self._model]
            self._contest.replace(2)
        self._factors = self._seconds_a_step()
        self.generation += self._contest.in_force != in_force

    def _seconds_a_step(self) -> list[float]:
        """Return for each contestant what a step of its scores is worth."""
        return [0.0, *(predictor.seconds / SCORE_STEPS for predictor in self._predictors)]


def _falling(scores: Bytes) -> Bytes:
    """Have no block score less than those that continue it: without it they are no use."""
    return np.maximum.accumulate(scores[::-1])[::-1]
