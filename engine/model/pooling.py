"""Embeddings: the mean of a prompt's last hidden states, added up chunk by chunk.

The sums are kept by the sequence's row of the block table: it has it for as long as it runs, and a prompt that begins
again begins with its first token, which overwrites what was there. So there is nothing to forget.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from engine.model.shaping import Send
from engine.request import SequenceId
from engine.step import SequenceStep


class PoolAsking(NamedTuple):
    """Tokens of the step whose hidden states are added up."""

    sequence: SequenceId
    row: int
    first: int  # of the step's tokens
    end: int
    begins: bool  # with the first token of the prompt
    num_prompt: int  # tokens of the whole prompt, where its last one is among them; 0: it is not


def pool_asking(part: SequenceStep, first: int) -> PoolAsking | None:
    """Return what a sequence asks in this step, whose token `first` is its own first one; None: nothing."""
    options = part.options
    if options is None or not options.pool:
        return None
    count = len(part.token_ids)
    num_prompt = options.num_prompt if part.start + count == options.num_prompt else 0
    return PoolAsking(part.sequence, part.row, first, first + count, part.start == 0, num_prompt)


class Pool:
    """Sums of hidden states of the prompts that are being computed, `[rows, H]` in float32."""

    def __init__(self, num_rows: int, size: int, device: torch.device) -> None:
        self._sums = torch.zeros((num_rows, size), dtype=torch.float32, device=device)

    def add(self, hidden: torch.Tensor, asked: Sequence[PoolAsking], send: Send) -> torch.Tensor | None:
        """Add hidden states `[T, H]` of a step up; return the means `[P, H]` of the prompts that end in it.

        None: none does. Nothing here waits for the device.
        """
        for one in asked:
            states = hidden[one.first : one.end]
            if one.begins:
                torch.sum(states, 0, dtype=torch.float32, out=self._sums[one.row])
            else:
                self._sums[one.row] += states.sum(0, dtype=torch.float32)
        ends = [one for one in asked if one.num_prompt]
        if not ends:
            return None
        rows = np.array([one.row for one in ends], dtype=np.int64)
        counts = np.array([[one.num_prompt] for one in ends], dtype=np.float32)
        there, lengths = send(rows, counts)
        return self._sums[there] / lengths
