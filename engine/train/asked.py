"""What was asked of a worker, as its eviction orders saw it: prompts and answers of each account, in order."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.memory.eviction.sightings import BlockKey, Words
from engine.replay.story import TraceProblem, read_story

MOST_BLOCKS = 1_000_000  # of the newest requests: some minutes of training would be longer than a night is worth


class Ask(NamedTuple):
    """One prompt in one account: its blocks in order, and those of its answers. A symbol stands for a block."""

    at: float  # unix seconds
    account: str
    blocks: list[int]
    answers: list[int]


class Asked(NamedTuple):
    """All of it, by time."""

    asks: list[Ask]
    block_size: int  # tokens

    @property
    def num_blocks(self) -> int:
        """Blocks that were asked for, each time counted."""
        return sum(len(ask.blocks) for ask in self.asks)

    @property
    def seconds(self) -> float:
        """From the first to the last."""
        return self.asks[-1].at - self.asks[0].at if self.asks else 0.0


def from_worker(trace: Path, *, most_blocks: int = MOST_BLOCKS) -> Asked:
    """Read a worker's ring file.

    Raises:
        TraceProblem: there is none, or nothing in it.
    """
    story = read_story(trace, 0.0, most_blocks)
    asks: list[Ask] = []
    for call in story.calls:
        if call.num_head:
            asks.append(Ask(call.at, f"group {call.group}", call.symbols[: call.num_head], []))
        own = call.symbols[call.num_head :]
        first = {output.first_block: output.symbols for output in call.outputs.values()}  # equal ones once
        answers = [symbol for symbols in first.values() for symbol in symbols]
        if own:
            asks.append(Ask(call.at, f"tenant {call.tenant}", own, answers))
    return Asked(asks, story.machine.block_size)


def from_mooncake(path: Path, *, block_size: int = 512) -> Asked:
    """Read a trace in the format of github.com/kvcache-ai/Mooncake, one JSON object a line.

    Raises:
        TraceProblem: it cannot be read.
    """
    try:
        with path.open() as stream:
            rows = [json.loads(line) for line in stream]
        asks = [Ask(row["timestamp"] / 1000, "tenant", list(map(int, row["hash_ids"])), []) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceProblem(f"{path} cannot be read as a Mooncake trace: {error!r}") from error
    return Asked([ask for ask in asks if ask.blocks], block_size)


def names_of(symbols: Iterable[int]) -> Words:
    """Return a name for each symbol, with the bits spread as SHA-256 spreads them (splitmix64)."""
    words = np.fromiter(symbols, np.uint64)
    words = (words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


def key_of(name: int) -> BlockKey:
    """Return a key of that name."""
    return BlockKey(name.to_bytes(8, "little") + (name ^ name >> 17).to_bytes(8, "little") + bytes(16))
