"""How long a step takes: a linear model of its work, fitted while the engine runs.

    seconds = w0 + w1 · decodes + w2 · context of the decodes + w3 · chunk tokens + w4 · chunk pairs,   all w ≥ 0

    context of the decodes   tokens whose KV the decodes read: bytes from memory
    chunk pairs              Σ over chunks of n · start + n · (n + 1) / 2: the attention of a prefill, in score entries

The fit is weighted least squares with exponential forgetting, kept as normal equations (recursive least squares in
information form) and solved by coordinate descent under w ≥ 0, a sweep after every fourth step:

    A ← λ A + u x xᵀ        u = huber / predicted²     errors count relative to the step, so that short ones matter
    b ← λ b + u x seconds   huber = min(1, 3 σ / |r|)  a paused machine is one bad step, not a new machine
    w_j ← max(0, (b_j + ρ p_j − Σ_{i≠j} A_ij w_i) / (A_jj + ρ))     p: the prior's shape at this machine's speed

r is the relative residual and σ a running mean of |r|, itself clipped: when all steps become slower, σ grows and the
model follows within some ten of them. Steps with and without chunks forget each on their own clock: an hour of decodes
does not wash out what a chunk costs.
"""

from collections.abc import Sequence
from typing import NamedTuple

# Seconds of each feature for a machine of speed 1, with features in units of SCALE: only the proportions matter.
# 512 chunk tokens are put at ten times an empty step, 64 decodes at two, 64k tokens of context at one, and the
# attention of 512 tokens over 2,000 at two.
_SCALE = (1.0, 1 / 64, 1 / 65_536, 1 / 512, 1 / 1_048_576)
_SHAPE = (1.0, 2.0, 2.0, 12.0, 6.0)
_SIZE = len(_SHAPE)
_PRIOR = 0.005  # weight of the prior, in steps
_FORGET = 0.985  # of one step: half is forgotten after 46 of its kind
_HUBER = 3.0
_FIRST_SPREAD = 0.25
_SPREAD_GAIN = 0.05
_FLOOR = 1e-9  # seconds; no step is shorter
_EAGER = 32  # the first steps are each followed by a sweep
_SOLVE_EVERY = 4  # then every fourth: a sweep costs as much as two updates


class StepWork(NamedTuple):
    """What one step computes."""

    num_decodes: int
    context_tokens: int  # of the decodes together, their new tokens included
    prefill_tokens: int = 0  # of all chunks
    prefill_pairs: int = 0  # Σ chunk_pairs

    def scaled(self) -> tuple[float, float, float, float, float]:
        """Return the features, each about 1 in a busy step."""
        decodes, context, tokens, pairs = self
        return (1.0, decodes * _SCALE[1], context * _SCALE[2], tokens * _SCALE[3], pairs * _SCALE[4])


def chunk_pairs(start: int, num_tokens: int) -> int:
    """Return the (query, key) pairs of a chunk of `num_tokens` after `start` tokens."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


class StepTimeModel:
    """Predicts seconds of a step from its work. One machine, one model, one owner; O(1) memory and time."""

    __slots__ = ("_speed", "_weights", "_windows", "num_observed", "spread")

    def __init__(self) -> None:
        self.num_observed = 0
        self.spread = _FIRST_SPREAD  # running mean of the relative error
        self._speed = 0.0  # seconds of the prior's unit on this machine
        self._weights = [0.0] * _SIZE
        self._windows = (_Window(), _Window())  # steps without and with chunks

    @property
    def weights(self) -> tuple[float, ...]:
        """Seconds for: a step, a decode, a token of context, a chunk token, a chunk pair. All ≥ 0."""
        return tuple(weight * scale for weight, scale in zip(self._weights, _SCALE, strict=True))

    def predict(self, work: StepWork) -> float:
        """Return seconds; 0 before anything was observed. Monotone in each kind of work."""
        return _dot(self._weights, work.scaled())

    def observe(self, work: StepWork, seconds: float) -> None:
        """Take in how long a step took. A time that is not positive is ignored: the clock was set back."""
        if not 0.0 < seconds < float("inf"):
            return
        features = work.scaled()
        speed = seconds / _dot(_SHAPE, features)
        if self.num_observed == 0:
            self._speed = speed
            self._weights = [speed * shape for shape in _SHAPE]
        predicted = max(_dot(self._weights, features), _FLOOR)
        error = abs(seconds - predicted) / predicted
        trust = min(1.0, _HUBER * self.spread / error) if error else 1.0
        self.spread += _SPREAD_GAIN * (min(error, _HUBER * self.spread) - self.spread)
        self.spread = max(self.spread, 1e-3)
        self._speed += (1 - _FORGET) * trust * (speed - self._speed)
        self._windows[work.prefill_tokens > 0].add(features, seconds, trust / max(predicted, seconds) ** 2)
        self.num_observed += 1
        if self.num_observed <= _EAGER or self.num_observed % _SOLVE_EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        """Run one sweep of coordinate descent from the last weights."""
        one, two = self._windows
        weights = self._weights
        for j in range(_SIZE):
            row = [a + b for a, b in zip(one.rows[j], two.rows[j], strict=True)]
            # ρ in the units of A: what _PRIOR average steps would add on this feature's diagonal.
            ridge = _PRIOR * (one.weight + two.weight) / max(1.0, one.count + two.count)
            free = one.right[j] + two.right[j] - _dot(row, weights) + row[j] * weights[j]
            prior = self._speed * _SHAPE[j]
            weights[j] = max(0.0, (free + ridge * prior) / (row[j] + ridge))


class _Window:
    """Normal equations of the last steps of one kind."""

    __slots__ = ("count", "right", "rows", "weight")

    def __init__(self) -> None:
        self.rows = [[0.0] * _SIZE for _ in range(_SIZE)]
        self.right = [0.0] * _SIZE
        self.count = 0.0
        self.weight = 0.0

    def add(self, features: Sequence[float], seconds: float, weight: float) -> None:
        """Forget a little of the old steps and add one."""
        self.count = self.count * _FORGET + 1.0
        self.weight = self.weight * _FORGET + weight
        one, decodes, context, tokens, pairs = features
        right = self.right
        for j, row in enumerate(self.rows):  # written out: it runs in every step
            gain = weight * features[j]
            row[0] = row[0] * _FORGET + gain * one
            row[1] = row[1] * _FORGET + gain * decodes
            row[2] = row[2] * _FORGET + gain * context
            row[3] = row[3] * _FORGET + gain * tokens
            row[4] = row[4] * _FORGET + gain * pairs
            right[j] = right[j] * _FORGET + gain * seconds


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
