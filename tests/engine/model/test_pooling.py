"""Means of hidden states: chunk by chunk, row by row, whoever was there before."""

from typing import Any

import numpy as np
import pytest
import torch

from engine.model.pooling import Pool, PoolAsking, pool_asking
from engine.request import SequenceId
from engine.step import SequenceStep, StepOptions

SIZE = 6


def send(*arrays: "np.ndarray[Any, Any]") -> tuple[torch.Tensor, ...]:
    """Bring arrays to where the host is, too."""
    return tuple(map(torch.from_numpy, arrays))


def states(count: int, seed: int = 0) -> torch.Tensor:
    """Return hidden states of so many tokens."""
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed))


def chunk(row: int, start: int, count: int, num_prompt: int) -> SequenceStep:
    """Return a chunk of a prompt to embed."""
    return SequenceStep(
        SequenceId(row), row, start, [0] * count, None, options=StepOptions(num_prompt=num_prompt, pool=True)
    )


def run(pool: Pool, hidden: torch.Tensor, *parts: SequenceStep) -> torch.Tensor | None:
    """Run a step of these chunks, end to end."""
    asked: list[PoolAsking | None] = []
    first = 0
    for part in parts:
        asked.append(pool_asking(part, first))
        first += len(part.token_ids)
    assert first == len(hidden)
    return pool.add(hidden, [one for one in asked if one is not None], send)


@pytest.mark.parametrize("cuts", [[11], [1, 10], [4, 4, 3], [1] * 11])
def test_chunks_add_up(cuts: list[int]) -> None:
    """Wherever a prompt is cut, its mean is that of all its tokens, and comes with the last chunk alone."""
    pool, hidden, start = Pool(3, SIZE, torch.device("cpu")), states(11), 0
    for count in cuts:
        found = run(pool, hidden[start : start + count], chunk(1, start, count, 11))
        start += count
        assert (found is None) == (start < 11)
    assert found is not None
    torch.testing.assert_close(found, hidden.mean(0)[None])


def test_prompts_do_not_mix() -> None:
    """Several in one step, each in its own row, beside tokens of others; means come in the order of the step."""
    pool = Pool(4, SIZE, torch.device("cpu"))
    first, second, third = states(3, 1), states(2, 2), states(5, 3)
    other = SequenceStep(SequenceId(9), 3, 0, [0] * 4, None)
    assert run(pool, torch.cat([first[:2], states(4, 8)]), chunk(0, 0, 2, 3), other) is None
    hidden = torch.cat([third, states(4, 9), first[2:], second])
    found = run(pool, hidden, chunk(2, 0, 5, 5), other, chunk(0, 2, 1, 3), chunk(1, 0, 2, 2))
    assert found is not None
    torch.testing.assert_close(found, torch.stack([third.mean(0), first.mean(0), second.mean(0)]))


def test_a_prompt_that_begins_again_begins_from_nothing() -> None:
    """What an earlier run, or another sequence, left in the row is not counted, be it NaN."""
    pool, hidden = Pool(1, SIZE, torch.device("cpu")), states(4)
    assert run(pool, torch.full((2, SIZE), float("nan")), chunk(0, 0, 2, 4)) is None
    assert run(pool, hidden[:3], chunk(0, 0, 3, 4)) is None
    found = run(pool, hidden[3:], chunk(0, 3, 1, 4))
    assert found is not None
    torch.testing.assert_close(found, hidden.mean(0)[None])


def test_sums_are_wider_than_the_states() -> None:
    """A thousand tokens in bfloat16 add up to what double precision says, but for their own rounding."""
    hidden = (states(1000) + 3).bfloat16()
    found = run(Pool(1, SIZE, torch.device("cpu")), hidden, chunk(0, 0, 1000, 1000))
    assert found is not None and found.dtype == torch.float32
    torch.testing.assert_close(found[0].double(), hidden.double().mean(0), atol=1e-5, rtol=1e-5)


def test_nothing_waits_for_the_device() -> None:
    """Where tensors have no values, as those on a GPU have none yet, all of it can still be launched."""
    meta = torch.device("meta")
    pool = Pool(2, SIZE, meta)
    asked = [pool_asking(chunk(0, 0, 3, 3), 0), pool_asking(chunk(1, 4, 2, 9), 3)]
    found = pool.add(
        torch.empty((5, SIZE), device=meta),
        [one for one in asked if one is not None],
        lambda *arrays: tuple(one.to(meta) for one in send(*arrays)),
    )
    assert found is not None and found.is_meta and found.shape == (1, SIZE)
