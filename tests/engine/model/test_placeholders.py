"""Tokens that a plan does not know yet."""

import numpy as np
import pytest
import torch

from engine.errors import CoreError
from engine.model.placeholders import LastTokens
from engine.step import placeholder
from tests.engine.model.device_like import CPU


def test_tokens_are_put_in() -> None:
    """Placeholders become the last step's tokens, in any order and more than once; token ids stay."""
    last = LastTokens(5, CPU)
    last.keep(torch.tensor([1, 2, 3, 4, 5]))
    last.keep(torch.tensor([40, 50, 60]))
    ids = np.array([placeholder(2), 7, placeholder(0), 0, placeholder(2)])
    assert last.asked_for(ids, 1)
    assert last.put_in(torch.from_numpy(ids)).tolist() == [60, 7, 40, 0, 60]


def test_nobody_asks() -> None:
    """Token ids alone need nothing."""
    assert not LastTokens(5, CPU).asked_for(np.array([0, 5, 1000]), 0)


def test_placeholder_of_nothing_is_an_error() -> None:
    """One before any step, or beyond what the last step sampled, is refused with the step's number."""
    last = LastTokens(5, CPU)
    with pytest.raises(CoreError, match="step 0 asks for token 0 of the step before it, which sampled 0"):
        last.asked_for(np.array([placeholder(0)]), 0)
    last.keep(torch.tensor([1, 2, 3, 4]))
    last.keep(torch.tensor([1, 2]))
    with pytest.raises(CoreError, match="step 3 asks for token 2 of the step before it, which sampled 2"):
        last.asked_for(np.array([4, placeholder(2)]), 3)
