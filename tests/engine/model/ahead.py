"""A loop that plans ahead, for tests: each step is launched before the tokens of the one before it are known.

Prompts arrive over time and are computed whole; sequences change places in the batch in every step, and leave when they
have their tokens.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.model.lanes import IN_FLIGHT
from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId
from engine.step import SequenceStep, StepHandle, StepPlan, TableWrite, placeholder


@dataclass
class Planned:
    """One sequence, of which `num_planned` tokens have been asked for."""

    index: int
    row: int
    prompt: Sequence[int]
    sampling: SamplingParams
    wanted: int
    blocks: list[int]
    num_planned: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all tokens that it wants have been asked for."""
        return self.num_planned == self.wanted


def generate_ahead(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], samplings: Sequence[SamplingParams], seed: int = 0
) -> list[list[int]]:
    """Return 6 to 12 tokens of each prompt; random streams are those of `driver.generate`."""
    rng, shape = random.Random(seed), runner.shape
    rows, free = list(range(shape.max_rows)), list(range(shape.num_blocks))
    rng.shuffle(rows)
    rng.shuffle(free)
    waiting = [
        Planned(index, rows.pop(), prompt, samplings[index], 6 + index % 7, []) for index, prompt in enumerate(prompts)
    ]
    every, running = list(waiting), list[Planned]()
    flying: deque[tuple[StepHandle, list[Planned]]] = deque()
    before: list[Planned] = []  # whom the step before has sampled, in its order
    while waiting or running:
        if waiting and (rng.random() < 0.5 or not running):
            running.append(waiting.pop())
        rng.shuffle(running)
        running.sort(key=lambda one: one.num_planned == 0)  # decodes first
        flying.append((runner.launch(_plan(running, before, free, shape.block_size)), running))
        before, running = running, [one for one in running if not one.done]
        if len(flying) == IN_FLIGHT:
            _collect(*flying.popleft())
    while flying:
        _collect(*flying.popleft())
    return [one.tokens for one in every]


def _collect(handle: StepHandle, parts: list[Planned]) -> None:
    for one, token in zip(parts, handle.wait().token_ids, strict=True):
        one.tokens.append(token)


def _plan(running: list[Planned], before: list[Planned], free: list[int], block_size: int) -> StepPlan:
    places = {one.index: place for place, one in enumerate(before)}
    parts, writes = [], []
    for one in running:
        first = one.num_planned == 0
        token_ids = list(one.prompt) if first else [placeholder(places[one.index])]
        start = 0 if first else len(one.prompt) + one.num_planned - 1
        needed = -(-(start + len(token_ids)) // block_size) - len(one.blocks)
        if needed > 0:
            fresh = tuple(BlockId(free.pop()) for _ in range(needed))
            writes.append(TableWrite(row=one.row, column=len(one.blocks), blocks=fresh))
            one.blocks.extend(fresh)
        parts.append(
            SequenceStep(
                sequence=SequenceId(one.index),
                row=one.row,
                start=start,
                token_ids=token_ids,
                sampling=one.sampling,
                position=one.num_planned,
                random_key=1000 + one.index,
            )
        )
        one.num_planned += 1
    poison = tuple(block for write in writes for block in write.blocks)
    return StepPlan(number=0, sequences=tuple(parts), table_writes=tuple(writes), poison=poison)
