"""How often blocks like this one came back: a table of classes, learned from the account's own requests as they come.

    class   hits (0 to 4) × turn (0, 1, more) × length of the prompt (five sizes) × whether the prompt ends with it
    score   ln of the class's rate of reuse over that of all blocks; the rate is -ln(1 - share that came back in time)

Uses are counted in cohorts of some minutes: only when all of a cohort are old enough is it known which ones came back.
What was learned fades, to a half in four hours. A class that was seen little is taken for what the prior says: a hit
is worth a third of a logarithm (`reuse.py`). Counting a use and a reuse is an addition each.
"""

import numpy as np

from engine.memory.eviction.base import View
from engine.memory.eviction.sightings import Bytes, Floats, Sight, to_bytes

NUM_CLASSES = 5 * 3 * 5 * 2
HORIZON_SECONDS = 600.0  # within which a block has to come back
_COHORTS = 4  # that are not yet old enough
_COHORT_SECONDS = HORIZON_SECONDS / _COHORTS
_FADING = 0.5 ** (_COHORT_SECONDS / (4 * 3600.0))
_PRIOR_USES = 20.0  # that the prior of a class counts as; a prompt of n blocks counts as the square root of n
_PRIOR_RATE = 0.4
_PRIOR_HIT = 1 / 3  # logarithms a hit
_USES, _REUSES = 0, 1


def classes_of(sight: Sight) -> Bytes:
    """Return the class of each block of a prompt."""
    count = len(sight.hits)
    size = min(4, max(0, count.bit_length() - 1) // 2)  # below 4, 16, 64, 256 blocks, and above
    classes = np.minimum(sight.hits, 4) * np.uint8(30) + np.uint8(min(sight.turn, 2) * 10 + size * 2)
    classes[-1:] += 1
    return classes


class HazardTable:
    """A Predictor: an account's own experience."""

    name = "table"
    seconds = 300.0  # of recency that one logarithm of a score is worth

    __slots__ = ("_cohort", "_recent", "_scores", "_totals")

    def __init__(self) -> None:
        self._cohort = 0  # number of the newest one
        self._recent: Floats | None = None  # [cohort, uses and reuses, class]; made when first needed
        self._totals = np.zeros((2, NUM_CLASSES), np.float32)
        self._scores = _scores(self._totals)

    def judge(self, view: View) -> Bytes:
        """Return the score of each block of a prompt."""
        return self._scores[classes_of(view.sight)]

    def learn(self, sight: Sight, classes: Bytes, now: float) -> None:
        """Note that a prompt was asked for: its blocks are used, and those that were known are used again."""
        recent = self._advance(int(now / _COHORT_SECONDS))
        weight = np.float32(len(classes) ** -0.5)
        np.add.at(recent[self._cohort % _COHORTS, _USES], classes, weight)
        again = (sight.gap >= 0) & (sight.classes < NUM_CLASSES)
        if again.any():
            cohorts = ((now - sight.gap[again]) / _COHORT_SECONDS).astype(np.int64)
            in_time = cohorts > self._cohort - _COHORTS
            places = cohorts[in_time] % _COHORTS, sight.classes[again][in_time]
            np.add.at(recent[:, _REUSES], places, weight)

    def _advance(self, cohort: int) -> Floats:
        """Return the cohorts, having added those up that are old enough."""
        if self._recent is None:
            self._recent, self._cohort = np.zeros((_COHORTS, 2, NUM_CLASSES), np.float32), cohort
        if cohort > self._cohort:
            for number in range(self._cohort + 1, min(cohort, self._cohort + _COHORTS) + 1):
                self._totals = (self._totals + self._recent[number % _COHORTS]) * np.float32(_FADING)
                self._recent[number % _COHORTS] = 0
            self._cohort = cohort
            self._scores = _scores(self._totals)
        return self._recent


def _scores(totals: Floats) -> Bytes:
    """Return the score of each class, given its uses and reuses."""
    uses = totals[_USES].astype(np.float64)
    reuses = np.minimum(totals[_REUSES], uses)
    share = (reuses.sum() + _PRIOR_USES * _PRIOR_RATE) / (uses.sum() + _PRIOR_USES)
    usual = -np.log1p(-share)
    prior = np.arange(NUM_CLASSES) // 30 * _PRIOR_HIT
    expected = -np.expm1(-usual * np.exp(prior))
    shares = (reuses + _PRIOR_USES * expected) / (uses + _PRIOR_USES)
    scores = np.log(-np.log1p(-np.minimum(shares, 0.999)) / usual)
    return to_bytes(scores)
