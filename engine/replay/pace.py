"""How long a coarse step takes on the machine that the trace is of.

A coarse step with decodes stands for `grain` steps of the machine, in each of which every decode gets one token and the
prefills a chunk; one without decodes for as many steps as its prompts fill. Seconds are those of the worker's own
step-time model (engine/scheduler/step_time.py), which is linear in what a step computes:

    seconds = steps · (w0 + w1 · decodes + w2 · context) + w3 · chunk tokens + w4 · chunk pairs + copies

What the scheduler learns from is one machine step of it in coarse work. So it predicts a coarse token's computation at
the cost of one of the model's, and copies are told it at that measure: it weighs the two as the worker would.
"""

from typing import NamedTuple

from engine.memory.tiers.rate import START_RATE
from engine.scheduler.chunks import ChunkBudget
from engine.scheduler.step_time import StepTimeModel, StepWork, chunk_pairs
from engine.scheduler.targets import step_seconds
from engine.step import StepPlan
from engine.trace.records import Machine, Speed

GUESS = Speed(0.0, (0.005, 0.0005, 1e-8, 0.0002, 1e-9))  # of a machine that has not told how fast it is


class CoarseStep(NamedTuple):
    """One coarse step's time."""

    seconds: float
    num_steps: int  # of the machine, in it
    observed: float  # seconds of one of them, in the terms of coarse work: what the scheduler's own model learns from
    store_seconds: float  # of copies to host memory, in these terms too
    load_seconds: float
    first_tokens: dict[int, float]  # seconds until each sequence's first token, for those that finish their prompt


class Pace:
    """Tells the time of coarse steps."""

    def __init__(self, speed: Speed | None, machine: Machine, grain: int) -> None:
        speed = speed or GUESS
        self._weights = speed.weights
        self._store_seconds = machine.block_bytes / (speed.store_rate or START_RATE)  # of a block
        self._load_seconds = machine.block_bytes / (speed.load_rate or START_RATE)
        self._grain = grain
        self._budget = machine.max_batched_tokens
        self._chunks = ChunkBudget(minimum=1, maximum=self._budget, model=_Known(self._weights))

    def target_seconds(self, rank: int) -> float:
        """Return how long a step of the machine may take with a stream of this class in it."""
        return step_seconds(rank, self._chunks.model)

    def step(self, plan: StepPlan, target_seconds: float) -> CoarseStep:
        """Return the time of a step, decodes first. `target_seconds`: how long a step of the machine may take."""
        grain, (base, decode, context, token, pair) = self._grain, self._weights
        num_decodes = num_context = num_tokens = num_pairs = 0
        is_full = False  # a prompt goes on in the next step: this one took all the tokens that it could
        ends: list[tuple[int, int]] = []  # sequences that finish their prompt, and the chunk tokens up to its end
        for part in plan.sequences:
            count = len(part.token_ids)
            if count == 1 and part.position and part.sampling is not None:
                num_decodes += 1
                num_context += part.start + 1
                continue
            num_tokens += count
            num_pairs += chunk_pairs(part.start, count)
            if part.sampling is None:
                is_full = True
            else:
                ends.append((part.sequence, num_tokens))
        each = base + decode * num_decodes + context * grain * num_context
        observed = each + token * num_tokens + pair * grain * num_pairs
        allowed = num_tokens if is_full else self._allowed(num_decodes, grain * num_context, target_seconds, num_tokens)
        num_steps = grain if num_decodes else -(-num_tokens * grain // allowed)
        prefill = grain * token * num_tokens + grain * grain * pair * num_pairs
        stores, loads = len(plan.stores) * self._store_seconds, len(plan.loads) * self._load_seconds
        first_tokens: dict[int, float] = {}
        for sequence, until in ends:  # a sequence's first token comes with the end of the machine's step
            steps = -(-until * grain // allowed)
            done = min(1.0, steps * allowed / (grain * num_tokens))  # of all chunks, by then
            first_tokens[sequence] = stores + loads + steps * each + done * prefill
        return CoarseStep(
            seconds=stores + loads + num_steps * each + prefill,
            num_steps=num_steps,
            observed=observed + (stores + loads) / grain,
            store_seconds=stores / grain,
            load_seconds=loads / grain,
            first_tokens=first_tokens,
        )

    def _allowed(self, num_decodes: int, context: int, target_seconds: float, num_tokens: int) -> int:
        """Return the prefill tokens that one step of the machine takes, where a coarse one did not need them all."""
        if not num_decodes:
            return self._budget
        free = max(1, self._budget - num_decodes)
        return max(num_tokens, min(free, self._chunks.tokens(num_decodes, context, target_seconds)))


class _Known(StepTimeModel):
    """A step-time model that is given, not learned."""

    __slots__ = ("_given",)

    def __init__(self, weights: tuple[float, ...]) -> None:
        super().__init__()
        self._given = weights
        self.num_observed = 1
        self.spread = 0.1

    @property
    def weights(self) -> tuple[float, ...]:
        """The given ones."""
        return self._given

    def predict(self, work: StepWork) -> float:
        """Return the seconds of a step."""
        base, decode, context, token, pair = self._given
        num_decodes, num_context, num_tokens, num_pairs = work
        return base + decode * num_decodes + context * num_context + token * num_tokens + pair * num_pairs
