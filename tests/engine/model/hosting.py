"""A tiny scheduler for tests, whose sequences are larger than the pool: what has no room lies in slabs.

Each step may store leading blocks in its plan, or ahead of it by transfers that go on while steps run, and may bring
some of them back by its loads, or copy a block, which may just have been loaded, elsewhere. Blocks that are given up
are poisoned.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId, SlabId
from engine.step import BlockCopy, SequenceStep, SlabMove, StepPlan, TableWrite, Transfer

SECONDS = 60.0  # that a transfer may take on a slow machine


@dataclass
class Large:
    """One sequence: its blocks, of which the first `len(slabs)` are in slabs alone."""

    index: int
    tokens: list[int]
    wanted: int  # tokens in the end
    sampling: SamplingParams
    computed: int = 0
    generated: int = 0
    slabs: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  # in the pages, behind those in slabs


@dataclass(frozen=True, kw_only=True)
class Hosting:
    """How to run: tokens of each, tokens of a step, blocks that each may have in the pages."""

    num_tokens: int = 8
    chunk: int = 24
    resident: int = 4
    seed: int = 0
    spare: int = 8  # blocks that stay free when one is loaded again
    comes_back: float = 0.3  # how often a hosted block is loaded again
    ahead: float = 0.5  # how often blocks are stored by a transfer
    moved: float = 0.15  # how often a block is copied


class Host:
    """Runs prompts side by side."""

    def __init__(self, runner: ModelRunner, how: Hosting) -> None:
        self._runner, self._how, self._rng = runner, how, random.Random(how.seed)
        self._size = runner.shape.block_size
        self._free = list(range(runner.shape.num_blocks))
        self._slabs = list(range(runner.shape.num_slabs))
        self._rng.shuffle(self._free)
        self._rng.shuffle(self._slabs)
        self._number = 0
        self._ahead: dict[int, tuple[int, SlabMove]] = {}  # sequence: the transfer that stores its first block
        self._done: set[int] = set()
        self.num_hosted = self.num_loaded = self.num_ahead = self.num_moved = 0

    def run(self, prompts: Sequence[Sequence[int]], samplings: Sequence[SamplingParams]) -> list[list[int]]:
        """Return each prompt's generated tokens."""
        sequences = [
            Large(index, list(prompt), len(prompt) + self._how.num_tokens, samplings[index])
            for index, prompt in enumerate(prompts)
        ]
        while running := [one for one in sequences if len(one.tokens) < one.wanted]:
            plan = self._plan(running)
            loaded = {move.block for move in plan.loads} | {copy.target for copy in plan.copies}  # not there yet
            for one in self._rng.sample(running, len(running)):
                if one.blocks[0] not in loaded:
                    self._store_ahead(one)  # beside this step
            result = iter(self._runner.launch(plan).wait().token_ids)
            by_row = {one.index: one for one in running}
            for part in plan.sequences:
                one = by_row[part.row]
                one.computed += len(part.token_ids)
                if part.sampling is not None:
                    one.tokens.append(next(result))
                    one.generated += 1
            self._free[:0] = [copy.source for copy in plan.copies]
            self._done |= {done.number for done in self._runner.copied()}
        return [one.tokens[len(prompt) :] for one, prompt in zip(sequences, prompts, strict=True)]

    def _plan(self, running: list[Large]) -> StepPlan:
        """Return a step: every sequence that has one token to compute, and chunks of the others."""
        self._number += 1
        moves: dict[str, list[SlabMove]] = {"stores": [], "loads": []}
        writes: list[TableWrite] = []
        poison: list[int] = []
        copies: list[BlockCopy] = []
        parts = []
        for one in sorted(running, key=lambda one: len(one.tokens) - one.computed):
            length = min(len(one.tokens) - one.computed, self._how.chunk)
            self._give_up(one, length, moves["stores"], poison)
            self._grow(one, length, writes, poison)
            self._bring_back(one, moves["loads"], writes, poison)
            self._move(one, copies, writes, poison)
            self.num_hosted += len(one.slabs)
            parts.append(
                SequenceStep(
                    sequence=SequenceId(one.index),
                    row=one.index,
                    start=one.computed,
                    token_ids=one.tokens[one.computed : one.computed + length],
                    sampling=one.sampling if one.computed + length == len(one.tokens) else None,
                    position=one.generated,
                    random_key=1000 + one.index,
                    hosted=tuple(map(SlabId, one.slabs)),
                )
            )
        return StepPlan(
            number=self._number,
            sequences=tuple(parts),
            table_writes=tuple(writes),
            poison=tuple(map(BlockId, poison)),
            stores=tuple(moves["stores"]),
            loads=tuple(moves["loads"]),
            copies=tuple(copies),
        )

    def _needed(self, one: Large, length: int) -> int:
        """Return how many new blocks the next tokens need."""
        return -(-(one.computed + length) // self._size) - len(one.slabs) - len(one.blocks)

    def _give_up(self, one: Large, length: int, stores: list[SlabMove], poison: list[int]) -> None:
        """Let leading blocks go until the next tokens have room."""
        while len(one.blocks) + self._needed(one, length) > self._how.resident:
            full = one.computed // self._size - len(one.slabs)
            if full < 1:
                break
            move = self._stored_ahead(one)
            if move is None:
                move = SlabMove(BlockId(one.blocks[0]), SlabId(self._slabs.pop()))
                stores.append(move)
            assert one.blocks.pop(0) == move.block
            one.slabs.append(move.slab)
            self._free.insert(0, move.block)
            poison.append(move.block)

    def _grow(self, one: Large, length: int, writes: list[TableWrite], poison: list[int]) -> None:
        for _ in range(self._needed(one, length)):
            block = self._free.pop()
            writes.append(TableWrite(one.index, len(one.slabs) + len(one.blocks), (BlockId(block),)))
            one.blocks.append(block)
            poison.append(block)

    def _bring_back(self, one: Large, loads: list[SlabMove], writes: list[TableWrite], poison: list[int]) -> None:
        """Load the last of the hosted blocks, now and then; its slab is free behind the step."""
        while one.slabs and len(self._free) > self._how.spare and self._rng.random() < self._how.comes_back:
            if one.index in self._ahead:
                return
            block, slab = self._free.pop(), one.slabs.pop()
            loads.append(SlabMove(BlockId(block), SlabId(slab)))
            writes.append(TableWrite(one.index, len(one.slabs), (BlockId(block),)))
            poison.append(block)
            one.blocks.insert(0, block)
            self._slabs.insert(0, slab)
            self.num_loaded += 1

    def _move(self, one: Large, copies: list[BlockCopy], writes: list[TableWrite], poison: list[int]) -> None:
        """Copy a block that is computed and no transfer's, now and then."""
        first = one.index in self._ahead
        if len(one.blocks) <= first or len(self._free) <= self._how.spare or self._rng.random() > self._how.moved:
            return
        source, target = one.blocks[first], self._free.pop()
        copies.append(BlockCopy(BlockId(source), BlockId(target)))
        writes.append(TableWrite(one.index, len(one.slabs) + first, (BlockId(target),)))
        poison.append(target)
        one.blocks[first] = target
        self.num_moved += 1

    def _store_ahead(self, one: Large) -> None:
        """Start to store a sequence's first block in the pages, which stays where it is until it is given up."""
        full = one.computed // self._size - len(one.slabs)
        if full < 1 or one.index in self._ahead or self._rng.random() > self._how.ahead:
            return
        self._number += 1
        move = SlabMove(BlockId(one.blocks[0]), SlabId(self._slabs.pop()))
        self._runner.copy(Transfer(self._number, True, (move,)))
        self._ahead[one.index] = self._number, move

    def _stored_ahead(self, one: Large) -> SlabMove | None:
        """Return where the first block has been stored, None if it was not; the transfer is waited for."""
        number, move = self._ahead.pop(one.index, (0, None))
        deadline = time.monotonic() + SECONDS
        while move is not None and number not in self._done:
            assert time.monotonic() < deadline
            self._done |= {done.number for done in self._runner.copied()}
        self.num_ahead += move is not None
        return move
