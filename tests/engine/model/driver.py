"""A tiny scheduler for tests: feeds prompts in chunks, mixes prefills with decodes, hands out shuffled blocks."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId
from engine.step import SequenceStep, StepPlan, TableWrite, TokenLogprobs

GREEDY = SamplingParams(temperature=0.0)

Logprobs = defaultdict[int, list[TokenLogprobs | None]]  # by prompt, one for each generated token


@dataclass
class Track:
    """One sequence on its way."""

    index: int
    tokens: list[int]
    prompt_length: int
    wanted: int
    sampling: SamplingParams
    key: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def generated(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def done(self) -> bool:
        """Whether it has all the tokens that it wants."""
        return len(self.generated) >= self.wanted


@dataclass(frozen=True)
class Drive:
    """How to run the prompts: tokens a step, sequences at once, and the seed of block order and arrival."""

    num_tokens: int = 16
    chunk: int = 64
    max_running: int = 64
    seed: int = 0


def generate(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    drive: Drive = Drive(),
    samplings: Sequence[SamplingParams] | None = None,
    logprobs: Logprobs | None = None,
) -> list[list[int]]:
    """Return each prompt's generated tokens, and put what the runner says of them into `logprobs`.

    Freed blocks are poisoned before they are used again.
    """
    rng = random.Random(drive.seed)
    free = list(range(runner.shape.num_blocks))[:4096]
    rng.shuffle(free)
    rows = list(range(runner.shape.max_rows))
    waiting = [
        Track(
            index, list(prompt), len(prompt), drive.num_tokens, samplings[index] if samplings else GREEDY, 1000 + index
        )
        for index, prompt in enumerate(prompts)
    ]
    rng.shuffle(waiting)
    running: dict[int, Track] = {}  # by row
    results: list[list[int]] = [[] for _ in prompts]
    number = 0
    while waiting or running:
        while waiting and len(running) < drive.max_running:
            running[rows.pop()] = waiting.pop()
        plan = _plan(number, running, free, drive, runner.shape.block_size)
        result = runner.launch(plan).wait()
        assert len(result.logprobs) in (0, len(result.token_ids))
        sampled = iter(zip(result.token_ids, result.logprobs or (None,) * len(result.token_ids), strict=True))
        for part in plan.sequences:
            track = running[part.row]
            track.computed += len(part.token_ids)
            if part.sampling is not None:
                token, measured = next(sampled)
                track.tokens.append(token)
                if logprobs is not None:
                    logprobs[track.index].append(measured)
        for row, track in [item for item in running.items() if item[1].done]:
            results[track.index] = track.generated
            free.extend(track.blocks)
            rows.append(row)
            del running[row]
        rng.shuffle(free)
        number += 1
    return results


def _plan(number: int, running: dict[int, Track], free: list[int], drive: Drive, block_size: int) -> StepPlan:
    budget = drive.chunk
    parts: list[SequenceStep] = []
    writes: list[TableWrite] = []
    ordered = sorted(running.items(), key=lambda item: len(item[1].tokens) - item[1].computed)  # decodes first
    for row, track in ordered:
        left = len(track.tokens) - track.computed
        length = 1 if left == 1 else min(left, budget)
        if length < 1:
            continue
        budget -= 0 if left == 1 else length
        needed = -(-(track.computed + length) // block_size) - len(track.blocks)
        if needed > 0:
            fresh = tuple(BlockId(free.pop()) for _ in range(needed))
            writes.append(TableWrite(row=row, column=len(track.blocks), blocks=fresh))
            track.blocks.extend(fresh)
        parts.append(
            SequenceStep(
                sequence=SequenceId(track.index),
                row=row,
                start=track.computed,
                token_ids=track.tokens[track.computed : track.computed + length],
                sampling=track.sampling if length == left else None,
                position=len(track.generated),
                random_key=track.key,
            )
        )
    poison = tuple(block for write in writes for block in write.blocks)
    return StepPlan(number=number, sequences=tuple(parts), table_writes=tuple(writes), poison=poison)
