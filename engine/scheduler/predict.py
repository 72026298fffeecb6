"""How long will an output be? A quantile of the tenant's own history, never another's.

A tenant's finished outputs are counted in bins that are 19 % wide (four to a doubling), the newest weighing most: an
observation's weight halves with every 64 after it. A prior of four observations, spread around 128 tokens, stands in
for a tenant that has finished nothing yet, and fades.

    predict(generated) = smallest L with  P(length ≤ L | length > generated) ≥ quantile

An output that was cut short (max_tokens, cancelled, ended by a limit) only says "longer than this": its weight goes to
the lengths beyond, in proportion to what is known of them (Efron's redistribution to the right of censored data).
"""

import math
from bisect import bisect_right
from itertools import accumulate, pairwise

QUANTILE = 0.75  # above the median: an output that outgrows its prediction may cost a preemption
_PER_DOUBLING = 4
_NUM_BINS = 20 * _PER_DOUBLING  # up to a million tokens
_EDGES = tuple(2 ** (index / _PER_DOUBLING) for index in range(_NUM_BINS + 1))  # bin i holds (edge i, edge i + 1]
_HALF_LIFE = 64  # observations
_GROWTH = 2 ** (1 / _HALF_LIFE)  # of the weight of each new observation, instead of shrinking all old ones
_RESCALE = 1e12
_PRIOR_WEIGHT = 4.0
_PRIOR_CENTRE, _PRIOR_WIDTH = math.log2(128), 2.0  # median and standard deviation, in doublings


def _normal(value: float) -> float:
    return 0.5 * (1 + math.erf(value / math.sqrt(2)))


def _prior() -> tuple[float, ...]:
    at = [_normal((index / _PER_DOUBLING - _PRIOR_CENTRE) / _PRIOR_WIDTH) for index in range(_NUM_BINS + 1)]
    at[0], at[-1] = 0.0, 1.0
    return tuple(_PRIOR_WEIGHT * (high - low) for low, high in pairwise(at))


_PRIOR = _prior()


class OutputLengths:
    """One tenant's history of output lengths in 80 numbers. Not shared: no tenant can skew another's admission."""

    __slots__ = ("_cache", "_gain", "_tails", "_weights", "quantile")

    def __init__(self, quantile: float = QUANTILE) -> None:
        """Predict the given quantile, between 0 and 1."""
        if not 0.0 < quantile < 1.0:
            raise ValueError(f"quantile must lie between 0 and 1, got {quantile}")
        self.quantile = quantile
        self._weights = list(_PRIOR)
        self._gain = _GROWTH
        self._tails: list[float] | None = None
        self._cache: dict[int, int] = {}

    def observe(self, num_output: int, *, complete: bool = True) -> None:
        """Take in an output of `num_output` tokens; `complete` is False when it would have gone on."""
        if complete:
            self._weights[_bin(num_output)] += self._gain
        else:
            self._redistribute(num_output)
        self._gain *= _GROWTH
        if self._gain > _RESCALE:
            self._weights = [weight / self._gain for weight in self._weights]
            self._gain = 1.0
        self._tails = None
        self._cache.clear()

    def predict(self, generated: int = 0) -> int:
        """Return the output length in tokens, more than `generated`, that this tenant's outputs keep within."""
        first = bisect_right(_EDGES, generated) - 1 if generated > 0 else 0
        first = min(max(first, 0), _NUM_BINS - 1)
        length = self._cache.get(first)
        if length is None:
            length = self._cache[first] = self._quantile_from(first)
        return max(length, generated + 1)

    def _quantile_from(self, first: int) -> int:
        """Return the quantile of the lengths in bins `first` and up."""
        tails = self._tail_weights()
        if tails[first] <= 0.0:  # nothing known that far out
            return math.ceil(_EDGES[first + 1])
        beyond = (1.0 - self.quantile) * tails[first]
        index = first
        while tails[index + 1] > beyond:
            index += 1
        inside = tails[index] - tails[index + 1]
        share = min(1.0, (tails[index] - beyond) / inside) if inside > 0.0 else 1.0
        return math.ceil(_EDGES[index] + share * (_EDGES[index + 1] - _EDGES[index]))

    def _tail_weights(self) -> list[float]:
        """Return for each bin the weight in it and above; one more entry, 0, at the end."""
        if self._tails is None:
            self._tails = [0.0, *accumulate(reversed(self._weights))][::-1]
        return self._tails

    def _redistribute(self, num_output: int) -> None:
        first = _bin(num_output + 1)
        total = self._tail_weights()[first]
        if total <= 0.0:
            self._weights[first] += self._gain
            return
        factor = 1.0 + self._gain / total
        self._weights[first:] = [weight * factor for weight in self._weights[first:]]


def _bin(num_tokens: int) -> int:
    """Return the bin that holds a length of `num_tokens`."""
    if num_tokens <= 1:
        return 0
    index = int(math.log2(num_tokens) * _PER_DOUBLING)
    if _EDGES[min(index, _NUM_BINS)] >= num_tokens:  # the upper edge belongs to the bin below
        index -= 1
    return min(index, _NUM_BINS - 1)
