"""Log-probabilities of tokens and of the likeliest ones in their places, of the model's own distribution.

They depend on a row's logits alone, never on its batch mates, and equal logits are ranked by token id. Those of a
prompt are worked out a few rows at a time: logits of all its tokens at once would take gigabytes.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from engine.model.shaping import Send
from engine.request import SequenceId
from engine.step import SequenceStep, TokenLogprobs
from kernels.ops import Ops

SLICE_BYTES = 64 << 20  # of a prompt's logits at once, in float32
_NUM_BYTES = 4


class Asking(NamedTuple):
    """A row of the step's logits that log-probabilities are asked for."""

    row: int
    num_best: int  # likeliest tokens to report beside the chosen one


class PromptAsking(NamedTuple):
    """Tokens of the step whose followers in the prompt are to be scored."""

    sequence: SequenceId
    first: int  # of the step's tokens
    followers: Sequence[int]  # token ids behind that one and each of the next
    num_best: int


def asking(parts: Sequence[SequenceStep]) -> tuple[Asking, ...]:
    """Return the rows that ask for log-probabilities; `parts` are the sequences of the step's logits."""
    return tuple(
        Asking(row, part.sampling.num_logprobs)
        for row, part in enumerate(parts)
        if part.sampling is not None and part.sampling.num_logprobs >= 0
    )


def prompt_asking(part: SequenceStep, first: int) -> PromptAsking | None:
    """Return what a sequence asks of its prompt in this step, whose token `first` is its own first one; None: nothing.

    The token behind the chunk's last one may be of the prompt, too; tokens behind the prompt have been sampled.
    """
    options = part.options
    if options is None or options.prompt_logprobs < 0:
        return None
    behind = [options.prompt_next] if options.prompt_next >= 0 else []
    followers = [*part.token_ids[1:], *behind][: options.num_prompt - 1 - part.start]
    return PromptAsking(part.sequence, first, followers, options.prompt_logprobs) if followers else None


def scored(
    logits: torch.Tensor, tokens: torch.Tensor, num_best: int, ops: Ops, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """Return log-probabilities in one piece, for `read`.

    Args:
        logits: `[N, vocab]`, before temperature, top-k and top-p.
        tokens: `[M]` int64, whose own are wanted.
        num_best: K or more; K is at most the vocabulary.
        ops: who computes.
        rows: `[M]` int64, which of the N; None: all of them.

    Returns:
        Float64 `[M, 1 + 2 * K]`: log-probabilities of the token and of the K best, and the K best token ids. Float64
        holds ids and float32 alike.
    """
    best = ops.top_k(logits, min(num_best, logits.shape[-1]), rows)[1]
    logprobs = ops.logprobs(logits, torch.cat([tokens[:, None], best], -1), rows)
    return torch.cat([logprobs.double(), best.double()], -1)


def sampled_scores(
    tokens: torch.Tensor, logits: torch.Tensor, asked: Sequence[Asking], ops: Ops, send: Send
) -> torch.Tensor:
    """Return `scored` of the sampled tokens `[N]` that are asked for, at least one."""
    num_best = max(one.num_best for one in asked)
    if len(asked) == len(tokens):
        return scored(logits, tokens, num_best, ops)
    (rows,) = send(np.array([one.row for one in asked], dtype=np.int64))
    return scored(logits, tokens[rows], num_best, ops, rows)


def prompt_scores(
    hidden: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    asked: Sequence[PromptAsking],
    num_rows: int,
    ops: Ops,
    send: Send,
) -> torch.Tensor:
    """Return `scored` of tokens of prompts, one sequence after the other.

    Args:
        hidden: `[T, H]`, of all tokens of the step.
        head: hidden states `[M, H]` to logits `[M, vocab]`.
        asked: at least one.
        num_rows: M at most.
        ops: who computes.
        send: brings arrays to the device.
    """
    num_best = max(one.num_best for one in asked)
    followers = np.fromiter(chain.from_iterable(one.followers for one in asked), dtype=np.int64)
    places = np.concatenate([np.arange(one.first, one.first + len(one.followers)) for one in asked])
    rows, tokens = send(places.astype(np.int64), followers)
    slices = [slice(start, start + num_rows) for start in range(0, len(followers), num_rows)]
    return torch.cat([scored(head(hidden[rows[part]]), tokens[part], num_best, ops) for part in slices])


def rows_at_once(vocab_size: int) -> int:
    """Return how many rows of logits `prompt_scores` is to make at once."""
    return max(1, SLICE_BYTES // (_NUM_BYTES * vocab_size))


def read(values: Sequence[float], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return log-probabilities from what `scored` has made of M tokens, with so many of the best for each."""
    size = len(values) // len(counts)
    width = (size - 1) // 2
    found: list[TokenLogprobs] = []
    for start, count in zip(range(0, len(values), size), counts, strict=True):
        first, best = start + 1, min(count, width)
        logprobs, ids = values[first : first + best], values[first + width : first + width + best]
        found.append(TokenLogprobs(values[start], tuple(zip(map(int, ids), logprobs, strict=True))))
    return found
