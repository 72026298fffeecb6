"""Masks of tokens: bit `i % 32` of word `i // 32` allows token `i`."""

from collections.abc import Iterable

import numpy as np

from engine.constraints.base import Mask

BITS = 32  # of a word


def allows(mask: Mask, token: int) -> bool:
    """Say whether a mask allows a token."""
    return bool(int(mask[token // BITS]) >> token % BITS & 1)


def allow(mask: Mask, tokens: Iterable[int]) -> None:
    """Allow tokens, too; those beyond the mask are no tokens of the model."""
    for token in tokens:
        if token < len(mask) * BITS:
            mask[token // BITS] |= np.uint32(1 << token % BITS)
