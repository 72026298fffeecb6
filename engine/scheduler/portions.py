"""How the prompt tokens of a step are shared out among the prefills that run and the sequences that may start."""

import heapq

from engine.scheduler.admission import Admission, Verdict
from engine.scheduler.fairness import eagerness, effective_rank, first_waiting, place
from engine.scheduler.pressure_score import PressureGauge
from engine.scheduler.sequence import SequenceState
from engine.scheduler.streaming import Streaming
from engine.scheduler.tenant import Tenant

STEP_SCORES = 8192  # log-probabilities of prompts in a step: what the host does with more would keep others waiting

Prefills = dict[Tenant, list[SequenceState]]


class Portions:
    """Gives out chunks, and starts what waits. Remembers nothing from one plan to the next."""

    def __init__(self, admission: Admission, pressure: PressureGauge, streaming: Streaming) -> None:
        self._admission = admission
        self._pressure = pressure
        self._streaming = streaming

    def share(self, budget: int, prefills: Prefills, now: float) -> dict[SequenceState, int]:
        """Share the budget out in prefill chunks: best class first, then by what its tenant has had (fairness.py).

        Who wants the log-probabilities of a prompt has no more tokens than the step may tell of.
        """
        scores = STEP_SCORES
        eager = eagerness(self._pressure.score)
        chunks: dict[SequenceState, int] = {}
        blocked: set[Tenant] = set()
        heap: list[tuple[int, float, int, int, Tenant]] = []  # on a tie, what is sooner done goes first

        def push(tenant: Tenant) -> None:
            candidate = self._candidate(tenant, prefills, blocked, now)
            if candidate is not None:
                rank = effective_rank(candidate, now)
                stands = place(candidate, eager, now)
                heapq.heappush(heap, (rank, stands, candidate.remaining, candidate.number, tenant))

        for tenant in {*prefills, *self._admission.contenders()}:
            push(tenant)
        while heap and budget > 0:
            tenant = heapq.heappop(heap)[-1]
            sequence = self._candidate(tenant, prefills, blocked, now)
            if sequence is None:
                continue
            if sequence.table is not None:
                prefills[tenant].remove(sequence)
            elif self._admission.try_start(sequence, now) is Verdict.BLOCKED:
                blocked.add(tenant)
            size = 0 if sequence.table is None else min(budget, sequence.remaining)
            if size and sequence.unscored < sequence.num_prompt:
                size = min(size, scores // _scores_of(sequence, 1))
            if size and sequence.streams:
                size = self._streaming.fit(sequence, size, now)
            if size:
                chunks[sequence] = size
                budget -= size
                scores -= _scores_of(sequence, size)
                _charge(sequence, size, now)
            push(tenant)
        return chunks

    def _candidate(self, tenant: Tenant, prefills: Prefills, blocked: set[Tenant], now: float) -> SequenceState | None:
        """Return what the tenant would compute next: an unfinished prefill or the head of its line."""
        best: SequenceState | None = None
        running = prefills.get(tenant)
        if running:
            alive = (sequence for sequence in running if sequence.table is not None)
            best = min(alive, key=lambda one: (effective_rank(one, now), one.number), default=None)
        if tenant in blocked or tenant.num_waiting == 0:
            return best
        waiting = first_waiting(tenant, now)
        if best is None or waiting is None:
            return best or waiting
        return min(best, waiting, key=lambda one: (effective_rank(one, now), one.number))


def _scores_of(sequence: SequenceState, num_tokens: int) -> int:
    """Return the log-probabilities that so many more tokens of a sequence's prompt come to."""
    return num_tokens * (1 + sequence.sampling.prompt_logprobs) if sequence.unscored < sequence.num_prompt else 0


def _charge(sequence: SequenceState, num_tokens: int, now: float) -> None:
    """Charge a chunk to its tenant, except for tokens that it has paid for before a preemption."""
    end = sequence.computed + num_tokens
    paid = max(sequence.charged, sequence.computed)  # what the cache held costs nothing
    if end > paid:
        sequence.tenant.counter += (end - paid) * sequence.tenant.prefill_cost
        sequence.tenant.prefill_tokens += end - paid
        sequence.charged = end
    sequence.tenant.lines[sequence.rank].served_at = now
