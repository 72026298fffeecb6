"""How many prefill tokens fit into a step beside its decodes, so that running streams keep their inter-token target.

With the weights w of step_time.py and s, the tokens that the chunk's prompt has behind it, the largest n with

    w0 + w1 · decodes + w2 · context + w3 · n + w4 · (n · s + n · (n + 1) / 2)  ≤  target / (1 + 2 · spread)

The right side keeps a distance that grows with how badly the model has predicted lately, up to half the target: steps
that scatter even more are somebody else's doing, and smaller chunks would not make them any better. The result stays
within [minimum, maximum]: a prefill always makes some progress, whatever the target. Without one the maximum is free.
"""

import math

from engine.scheduler.step_time import StepTimeModel, StepWork

_CAUTION = 2.0  # of the mean relative error
_MOST_SPREAD = 0.5


class ChunkBudget:
    """Sizes the prefill part of each step. Learns from every step that it is told of."""

    __slots__ = ("maximum", "minimum", "model")

    def __init__(self, *, minimum: int, maximum: int, model: StepTimeModel | None = None) -> None:
        """Keep budgets within [minimum, maximum] tokens, 1 ≤ minimum ≤ maximum."""
        if not 1 <= minimum <= maximum:
            raise ValueError(f"1 <= minimum <= maximum is needed, got {minimum} and {maximum}")
        self.minimum = minimum
        self.maximum = maximum
        self.model = model or StepTimeModel()

    def observe(self, work: StepWork, seconds: float) -> None:
        """Take in how long a step took on the device."""
        self.model.observe(work, seconds)

    def tokens(self, num_decodes: int, context_tokens: int, target_seconds: float, prefill_start: int = 0) -> int:
        """Return the prefill tokens for a step that takes at most `target_seconds`.

        Args:
            num_decodes: sequences that get their next token in this step.
            context_tokens: of these together.
            target_seconds: how long the step may take (targets.py); inf or ≤ 0: as long as it takes.
            prefill_start: tokens already computed of the prompt that comes first; attention costs more behind many.
        """
        if not 0.0 < target_seconds < math.inf or not self.model.num_observed:
            return self.maximum
        base = self.model.predict(StepWork(num_decodes, context_tokens))
        room = target_seconds / (1.0 + _CAUTION * min(self.model.spread, _MOST_SPREAD)) - base
        if room <= 0.0:
            return self.minimum
        _, _, _, token, pair = self.model.weights
        linear = token + pair * (prefill_start + 0.5)
        return min(self.maximum, max(self.minimum, _largest(linear, pair / 2, room, self.maximum)))


def _largest(linear: float, square: float, room: float, maximum: int) -> int:
    """Return the largest n ≤ maximum with linear · n + square · n² ≤ room; all ≥ 0."""
    if linear * maximum + square * maximum * maximum <= room:
        return maximum
    # The positive root, written so that it neither divides by a tiny square nor cancels.
    return int(2 * room / (linear + math.sqrt(linear * linear + 4 * square * room)))
