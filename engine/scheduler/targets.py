"""How long a step may take: so long a stream waits for its next token, and a new request for the step it comes into.

    class         at most     and at most
    interactive   0.1 s       `SLOWDOWN` × what a step of its own decodes alone would take
    standard      0.25 s
    batch         as long as it takes

The strictest class in the step counts. The second bound is for machines that are much faster than 0.1 s: a stream that
gets a token each 6 ms must not fall to one in 100 ms because a neighbour has a long prompt. It is what a neighbour can
cost an interactive stream at most. With chunks.py's distance it is some four and a half in the mean; at three, prompts
would get less than 0.75 of the throughput that they have in the largest chunks, at five it is 0.85 (bench/noisy.py).

An interactive request comes in the middle of a step and waits for its end. So the steps stay short for a while after
the last one was here, `PRESENT_SECONDS`: who asks now and then finds them short, not only who is answered.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from engine.scheduler.sequence import SequenceState
from engine.scheduler.step_time import StepTimeModel, StepWork
from engine.scheduler.tenant import Tenant

INTER_TOKEN_SECONDS = (0.1, 0.25, math.inf)  # by class: interactive, standard, batch
SLOWDOWN = 5.0
PRESENT_SECONDS = 10.0
MIN_CHUNK_TOKENS = 32  # of all prefills in a step together: what waits makes progress whatever the targets
EVERY_STEPS = 8  # steps of decodes alone are timed once in so many: they teach little, and all of them cost time
_INTERACTIVE, _LAST = 0, len(INTER_TOKEN_SECONDS) - 1


def step_seconds(rank: int, model: StepTimeModel, *, num_decodes: int = 1, context_tokens: int = 0) -> float:
    """Return how long a step may take whose strictest class is `rank`; inf: as long as it takes.

    Args:
        rank: 0 interactive, 1 standard, 2 batch.
        model: what is known of how long steps take.
        num_decodes: streams of that class in the step, at least 1.
        context_tokens: of these together.
    """
    limit = INTER_TOKEN_SECONDS[rank]
    if rank != _INTERACTIVE or not model.num_observed:
        return limit
    return min(limit, SLOWDOWN * model.predict(StepWork(num_decodes, context_tokens)))


class StepTarget:
    """Says how long the next step may take. Remembers when somebody of the first class was last here."""

    __slots__ = ("_model", "_seen_at")

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model
        self._seen_at = -math.inf

    def see(self, prefills: Mapping[Tenant, Sequence[SequenceState]], waiting: Iterable[Tenant], now: float) -> None:
        """Note whether an interactive request waits, or has its prompt computed."""
        if any(len(tenant.lines[_INTERACTIVE]) for tenant in waiting) or any(
            sequence.rank == _INTERACTIVE for some in prefills.values() for sequence in some
        ):
            self._seen_at = now

    def seconds(self, decodes: Sequence[SequenceState], now: float) -> float:
        """Return the seconds that a step with these decodes may take; inf: as long as it takes."""
        strictest = min((sequence.rank for sequence in decodes), default=_LAST)
        if strictest == _INTERACTIVE:
            self._seen_at = now
        elif now - self._seen_at > PRESENT_SECONDS:
            return INTER_TOKEN_SECONDS[strictest]
        own = [sequence.computed for sequence in decodes if sequence.rank == _INTERACTIVE]
        return step_seconds(_INTERACTIVE, self._model, num_decodes=max(1, len(own)), context_tokens=sum(own))
