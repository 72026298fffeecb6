"""What a step is told of the few sequences that ask for more than plain sampling."""

from collections.abc import Iterable

import numpy as np

from engine.constraints.base import Mask
from engine.scheduler.history import History, Start
from engine.scheduler.sequence import SequenceState
from engine.step import LogitChanges, StepOptions

_WORD = 32  # tokens of a word of a mask


def options_of(sequence: SequenceState, start: int, num_tokens: int) -> StepOptions:
    """Return what the runner needs to know beside the sampling, where so many tokens from `start` on are computed.

    A sequence whose choice looks back is planned with all its tokens known, so that its history is whole.
    """
    request, sampling, tokens = sequence.request, sequence.sampling, sequence.tokens
    num_prompt, end = sequence.num_prompt, start + num_tokens
    samples = end >= len(tokens) and not request.embed
    is_early = samples and end - num_prompt < sampling.min_tokens
    scores = sampling.prompt_logprobs if max(sequence.unscored, start + 1) <= min(end, num_prompt - 1) else -1
    constraint = sequence.constraint
    banned = sequence.stop_ids if is_early else frozenset()
    mask = constraint.mask(tokens, num_prompt) if samples and constraint is not None else None
    if mask is not None:
        mask, banned = choosable(mask, banned, sequence.stop_ids)
    return StepOptions(
        changes=_changes(sequence) if samples else None,
        banned=banned,
        mask=mask,
        num_prompt=num_prompt,
        prompt_logprobs=scores,
        prompt_next=tokens[end] if scores >= 0 and end < num_prompt else -1,
        pool=request.embed,
    )


def choosable(mask: Mask, banned: frozenset[int], end_ids: frozenset[int]) -> tuple[Mask | None, frozenset[int]]:
    """Return a grammar's mask and the tokens that are banned beside it, so that they leave something to be chosen.

    A grammar is stronger than `min_tokens`: where it allows banned tokens alone, since the output is complete, they are
    not banned. A mask that allows nothing, which no grammar should return, allows the end tokens instead; without any
    the choice is free, rather than one among tokens that are all ruled out.
    """
    if not mask.any():
        return _mask_of(end_ids, len(mask)), frozenset()
    if banned and not (mask & ~_bits(banned, len(mask))).any():
        return mask, frozenset()
    return mask, banned


def _mask_of(token_ids: Iterable[int], num_words: int) -> Mask | None:
    mask = _bits(token_ids, num_words)
    return mask if mask.any() else None


def _bits(token_ids: Iterable[int], num_words: int) -> Mask:
    bits = np.zeros(num_words, dtype=np.uint32)
    for token in token_ids:
        if token < num_words * _WORD:
            bits[token // _WORD] |= np.uint32(1 << token % _WORD)
    return bits


def _changes(sequence: SequenceState) -> LogitChanges | None:
    sampling = sequence.sampling
    if not (sampling.penalises or sampling.logit_bias):
        return None
    if sequence.history is None:
        others = () if sequence.group is None else sequence.group.members
        start = next((one.history.start for one in others if one.history is not None), None)
        sequence.history = History(sampling, start or Start.of(sampling, sequence.request.prompt))
    return sequence.history.changes(sequence.tokens)
