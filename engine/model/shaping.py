"""Change the logits that tokens are chosen from, as few sequences ask: the order is that of this list.

    1. logit_bias is added
    2. the repetition penalty divides what is positive, and multiplies the rest
    3. frequency and presence penalties are subtracted
    4. what is banned, or not in the grammar's mask, becomes -inf

The model's own logits stay as they are for who asks for log-probabilities. Where nobody does and all there is to do is
the last, they are overwritten, for copies of a large vocabulary's logits cost more than masks do. On a GPU nothing here
waits for the device: all that it must be told goes there in one copy.
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


class Shaped(NamedTuple):
    """The rows of a step's logits that are not chosen from as the model leaves them."""

    banned: list[int]  # nothing but -inf here and there, and nobody reads them afterwards
    copied: list[int]  # all others


class _Bans(NamedTuple):
    """Where -inf goes in M rows of logits; arrays here, tensors on the device."""

    places: Any  # `[B]` int64: in the flat `[M * vocab]`
    masked: Any  # `[Q]` int64: which of the M rows have a mask
    words: Any  # `[Q, ceil(vocab / 32)]` int32: those


class _Changes(NamedTuple):
    """What else becomes of M rows of logits, taken out of a step's; arrays here, tensors on the device."""

    rows: Any  # `[M]` int64: which of the step's they are
    places: Any  # `[K]` int64: in the flat `[M * vocab]`, each once
    values: Any  # `[3, K]` float32: bias, repetition, penalty


def shaped(parts: Sequence[SequenceStep]) -> Shaped:
    """Return the rows that are to be shaped; `parts` are the rows' sequences."""
    found = Shaped([], [])
    for row, part in enumerate(parts):
        options = part.options
        if options is None:
            continue
        is_read = part.sampling is not None and part.sampling.num_logprobs >= 0
        is_banned = bool(options.banned) or options.mask is not None
        if options.changes is not None or (is_banned and is_read):
            found.copied.append(row)
        elif is_banned:
            found.banned.append(row)
    return found


def ban(logits: torch.Tensor, parts: Sequence[SequenceStep], rows: Sequence[int], ops: Ops, send: Send) -> None:
    """Put -inf in place into the rows that `Shaped.banned` names, at least one; arguments as of `shape`."""
    here = _bans([(row, one) for row in rows if (one := parts[row].options) is not None], logits.shape[-1])
    _ban(logits, here, _Bans(*send(*here)), ops)


def shape(
    logits: torch.Tensor, parts: Sequence[SequenceStep], rows: Sequence[int], ops: Ops, send: Send
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take rows out of a step's logits and change them.

    Args:
        logits: `[N, vocab]`, of any float type.
        parts: the N sequences.
        rows: M of them, at least one, as `Shaped.copied` names them.
        ops: who computes.
        send: brings arrays to the device.

    Returns:
        The rows on the device, int64 `[M]`, and their logits, float32 `[M, vocab]`, contiguous.
    """
    vocab = logits.shape[-1]
    options = list(enumerate(one for row in rows if (one := parts[row].options) is not None))
    changes, bans = _changes(rows, options, vocab), _bans(options, vocab)
    there = send(*changes, *bans)
    own_rows, places, values = there[:3]
    own = logits.index_select(0, own_rows).float()
    if changes.places.size:
        _change(own.view(-1), places, values)
    _ban(own, bans, _Bans(*there[3:]), ops)
    return own_rows, own


def _change(flat: torch.Tensor, places: torch.Tensor, changes: torch.Tensor) -> None:
    bias, repetition, penalty = changes.unbind(0)
    value = flat.index_select(0, places).add_(bias)
    value = torch.where(value > 0, value / repetition, value * repetition).sub_(penalty)
    flat.index_copy_(0, places, value)


def _ban(logits: torch.Tensor, here: _Bans, there: _Bans, ops: Ops) -> None:
    if here.places.size:
        logits.view(-1).index_fill_(0, there.places, -torch.inf)
    if here.masked.size:
        ops.mask(logits, there.masked, there.words)


def _bans(options: Sequence[tuple[int, StepOptions]], vocab: int) -> _Bans:
    places = [row * vocab + token for row, one in options for token in one.banned if token < vocab]
    masked = [(row, one.mask) for row, one in options if one.mask is not None]
    words = np.zeros((len(masked), -(-vocab // _WORD)), dtype=np.uint32)
    for line, (_, mask) in zip(words, masked, strict=True):
        line[: len(mask)] = mask[: len(line)]
    return _Bans(
        places=np.array(places, dtype=np.int64),
        masked=np.array([row for row, _ in masked], dtype=np.int64),
        words=words.view(np.int32),
    )


def _changes(rows: Sequence[int], options: Sequence[tuple[int, StepOptions]], vocab: int) -> _Changes:
    changes = [(row * vocab, one.changes) for row, one in options if one.changes is not None]
    return _Changes(
        rows=np.array(rows, dtype=np.int64),
        places=np.concatenate([_NO_PLACES, *(one.token_ids + start for start, one in changes)]),
        values=np.concatenate([_NO_CHANGES, *(one.values for _, one in changes)], axis=1),
    )
