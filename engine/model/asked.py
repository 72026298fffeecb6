"""What a step's sequences ask for beside tokens, and how it comes back: behind the tokens, in one tensor.

    values   tokens · log-probabilities of some of them · of tokens of prompts · means of hidden states

So a step waits for the device once, whatever it is asked for.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch

from engine.model.layout import Array
from engine.model.logprobs import Asking, PromptAsking, asking, prompt_asking, read
from engine.model.pooling import PoolAsking, pool_asking
from engine.request import SequenceId
from engine.step import SequenceStep, TokenLogprobs


class Asked(NamedTuple):
    """What a step is asked for; empty for nearly all."""

    scores: tuple[Asking, ...] = ()
    prompts: tuple[PromptAsking, ...] = ()
    pools: tuple[PoolAsking, ...] = ()

    @property
    def needs_hidden(self) -> bool:
        """Whether the hidden states of the step's tokens are wanted, beside the logits."""
        return bool(self.prompts or self.pools)


class Values(NamedTuple):
    """Tensors that a step has made, on the device; those that nobody asked for are None."""

    tokens: torch.Tensor  # `[N]` int64
    scores: torch.Tensor | None = None  # see `scored`
    prompts: torch.Tensor | None = None
    means: torch.Tensor | None = None  # `[P, H]`

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each of them."""
        return tuple(0 if one is None else one.numel() for one in self)

    def packed(self) -> torch.Tensor:
        """Return all of them in one piece: int64 where there are tokens alone, else float64, which holds all alike."""
        present = [one for one in self if one is not None]
        return self.tokens if len(present) == 1 else torch.cat([one.double().flatten() for one in present])


def asked_of(parts: Sequence[SequenceStep], sampled: Sequence[SequenceStep], query_starts: Array) -> Asked:
    """Return what a step is asked for.

    Args:
        parts: its S sequences.
        sampled: those of them that get a token.
        query_starts: `[S + 1]`, which of the step's tokens are whose.
    """
    scores = asking(sampled)
    special = [(part, int(query_starts[index])) for index, part in enumerate(parts) if part.options is not None]
    if not special:
        return Asked(scores)
    prompts = (prompt_asking(part, first) for part, first in special)
    pools = (pool_asking(part, first) for part, first in special)
    return Asked(
        scores, tuple(one for one in prompts if one is not None), tuple(one for one in pools if one is not None)
    )


class Answers(NamedTuple):
    """The same on the host."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    prompts: dict[SequenceId, tuple[TokenLogprobs, ...]]
    means: dict[SequenceId, tuple[float, ...]]


def read_answers(values: Sequence[float], sizes: Sequence[int], asked: Asked) -> Answers:
    """Take apart what `Values.packed` has put together; `sizes` are its pieces'."""
    rest = iter(values)
    tokens, scores, prompts, means = (list(islice(rest, size)) for size in sizes)
    logprobs: list[TokenLogprobs | None] = [None] * len(tokens) if asked.scores else []
    if asked.scores:
        counts = [one.num_best for one in asked.scores]
        for (row, _), one in zip(asked.scores, read(scores, counts), strict=True):
            logprobs[row] = one
    return Answers(tuple(map(int, tokens)), tuple(logprobs), _prompts(prompts, asked), _means(means, asked))


def _prompts(values: Sequence[float], asked: Asked) -> dict[SequenceId, tuple[TokenLogprobs, ...]]:
    if not asked.prompts:
        return {}
    found = iter(read(values, [one.num_best for one in asked.prompts for _ in one.followers]))
    return {one.sequence: tuple(islice(found, len(one.followers))) for one in asked.prompts}


def _means(values: Sequence[float], asked: Asked) -> dict[SequenceId, tuple[float, ...]]:
    ends = [one.sequence for one in asked.pools if one.num_prompt]
    if not ends:
        return {}
    rest, size = iter(values), len(values) // len(ends)
    return {sequence: tuple(islice(rest, size)) for sequence in ends}
