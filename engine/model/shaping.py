"""Change the logits that tokens are chosen from, as few sequences ask: the order is that of this list.

    1. logit_bias is added
    2. the repetition penalty divides what is positive, and multiplies the rest
    3. frequency and presence penalties are subtracted
    4. what is banned, or not in the grammar's mask, becomes -inf

The model's own logits stay as they are. On a GPU nothing here waits for the device: all that it must be told goes there
in one copy.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from engine.step import SequenceStep, StepOptions
from kernels.ops import Ops

Send = Callable[..., tuple[torch.Tensor, ...]]
"""Brings arrays to the device of the step in one copy, without a wait."""

_WORD = 32  # tokens of a word of a mask
_NO_PLACES, _NO_CHANGES = np.empty(0, dtype=np.int64), np.empty((3, 0), dtype=np.float32)


class _Orders(NamedTuple):
    """What is to be done to M rows of logits, taken out of a step's; arrays here, tensors on the device."""

    rows: Any  # `[M]` int64: which of the step's they are
    changed: Any  # `[K]` int64: places in the flat `[M * vocab]`, each once
    changes: Any  # `[3, K]` float32: bias, repetition, penalty
    banned: Any  # `[B]` int64: places
    masked: Any  # `[Q]` int64: which of the M rows have a mask
    words: Any  # `[Q, ceil(vocab / 32)]` int32: those


def shaped(parts: Sequence[SequenceStep]) -> list[int]:
    """Return the rows that are not chosen from as the model leaves them; `parts` are the rows' sequences."""
    return [row for row, part in enumerate(parts) if part.options is not None and _shapes(part.options)]


def shape(
    logits: torch.Tensor, parts: Sequence[SequenceStep], rows: Sequence[int], ops: Ops, send: Send
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take rows out of a step's logits and change them.

    Args:
        logits: `[N, vocab]`, of any float type.
        parts: the N sequences.
        rows: M of them, at least one, as `shaped` returns them.
        ops: who computes.
        send: brings arrays to the device.

    Returns:
        The rows on the device, int64 `[M]`, and their logits, float32 `[M, vocab]`, contiguous.
    """
    vocab = logits.shape[-1]
    options = [one for row in rows if (one := parts[row].options) is not None]
    here = _orders(rows, options, vocab)
    there = _Orders(*send(*here))
    own = logits.index_select(0, there.rows).float()
    flat = own.view(-1)
    if here.changed.size:
        _change(flat, there.changed, there.changes)
    if here.banned.size:
        flat.index_fill_(0, there.banned, -torch.inf)
    if here.masked.size:
        ops.mask(own, there.masked, there.words)
    return there.rows, own


def _shapes(options: StepOptions) -> bool:
    return options.changes is not None or bool(options.banned) or options.mask is not None


def _change(flat: torch.Tensor, places: torch.Tensor, changes: torch.Tensor) -> None:
    bias, repetition, penalty = changes.unbind(0)
    value = flat.index_select(0, places).add_(bias)
    value = torch.where(value > 0, value / repetition, value * repetition).sub_(penalty)
    flat.index_copy_(0, places, value)


def _orders(rows: Sequence[int], options: Sequence[StepOptions], vocab: int) -> _Orders:
    pairs = list(zip(range(0, len(rows) * vocab, vocab), options, strict=True))
    changes = [(start, one.changes) for start, one in pairs if one.changes is not None]
    banned = [start + token for start, one in pairs for token in one.banned if token < vocab]
    masked = [(row, one.mask) for row, one in enumerate(options) if one.mask is not None]
    words = np.zeros((len(masked), -(-vocab // _WORD)), dtype=np.uint32)
    for line, (_, mask) in zip(words, masked, strict=True):
        line[: len(mask)] = mask[: len(line)]
    return _Orders(
        rows=np.array(rows, dtype=np.int64),
        changed=np.concatenate([_NO_PLACES, *(one.token_ids + start for start, one in changes)]),
        changes=np.concatenate([_NO_CHANGES, *(one.values for _, one in changes)], axis=1),
        banned=np.array(banned, dtype=np.int64),
        masked=np.array([row for row, _ in masked], dtype=np.int64),
        words=words.view(np.int32),
    )
