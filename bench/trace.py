"""The Mooncake conversation trace: requests of a production chat service, 512-token blocks."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from engine.memory.eviction.simulate import Prompt

_DATA = Path(__file__).parents[2] / "shared" / "data"  # beside the checkout
PATH = Path(os.environ.get("TOLLGATE_TRACE") or _DATA / "mooncake_conversation_trace.jsonl")
BLOCK_TOKENS = 512


class TraceRequest(NamedTuple):
    """One line of the trace."""

    at: float  # seconds
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]  # equal ids: equal blocks with equal blocks before them

    @property
    def prompt(self) -> Prompt:
        """Return what a cache sees of it."""
        return Prompt(self.at, self.blocks)


def load(path: Path = PATH) -> list[TraceRequest]:
    """Read the trace. Raises FileNotFoundError, saying where to get it."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: fetch conversation_trace.jsonl of github.com/kvcache-ai/Mooncake (Apache-2.0) and name"
            " it in TOLLGATE_TRACE"
        )
    with path.open() as stream:
        return [
            TraceRequest(row["timestamp"] / 1000, row["input_length"], row["output_length"], tuple(row["hash_ids"]))
            for row in map(json.loads, stream)
        ]
