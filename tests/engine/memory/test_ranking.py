"""The ranking of blocks by value: the same order as a sorted list, whatever the length of its runs."""

import bisect
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory import ranking
from engine.memory.ranking import Ranking
from engine.request import BlockId

VALUES = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False))


@given(
    run=st.sampled_from((1, 2, 3, 512)),
    actions=st.lists(st.one_of(st.none(), VALUES), max_size=60),
    entries=st.lists(VALUES, max_size=10),
)
def test_pops_the_lowest_value_that_came_first(run: int, actions: list[float | None], entries: list[float]) -> None:
    """Entries come and go in any order: each pop gives what a stable sort would put first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_RUN", run)
        numbered = [(value, BlockId(number)) for number, value in enumerate(entries)]
        ranked, model = Ranking(numbered), sorted(numbered)
        for number, value in enumerate(actions, start=len(entries)):
            if value is not None:
                ranked.add(value, BlockId(number))
                bisect.insort(model, (value, BlockId(number)), key=lambda entry: entry[0])
            elif model:
                assert ranked.pop() == model.pop(0)
            assert len(ranked) == len(model)
            assert list(ranked) == [block for _, block in model]


def test_long_runs_of_rising_values() -> None:
    """Thousands of entries, mostly of the newest use: the order holds over many runs."""
    chance = random.Random(2)
    ranked = Ranking()
    model: list[tuple[float, int]] = []
    for number in range(5_000):
        value = number / 10 if chance.random() < 0.9 else chance.random() * number
        ranked.add(value, BlockId(number))
        bisect.insort(model, (value, number), key=lambda entry: entry[0])
        if chance.random() < 0.3:
            assert ranked.pop() == model.pop(0)
    assert [ranked.pop() for _ in range(len(ranked))] == model
    assert not ranked
