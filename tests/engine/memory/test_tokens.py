"""Token ids in three bytes: what goes in comes out, and agreement counts whole tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvariantError
from engine.memory.tokens import BlockTokens
from engine.request import BlockId

TOKENS = st.one_of(st.integers(0, 2), st.sampled_from((255, 256, 65_535, 65_536, (1 << 24) - 1)))


@given(
    rows=st.lists(st.lists(TOKENS, min_size=4, max_size=4), min_size=1, max_size=6),
    wanted=st.lists(TOKENS, min_size=1, max_size=4),
)
def test_finds_the_longest_agreement(rows: list[list[int]], wanted: list[int]) -> None:
    """The first of the blocks that agree longest with the wanted tokens, and how many they have in common."""
    tokens = BlockTokens(len(rows), 4)
    for block, row in enumerate(rows):
        tokens.put(BlockId(block), row)
    assert [tokens.get(BlockId(block)) for block in range(len(rows))] == rows
    best, most = -1, 0
    for block, row in enumerate(rows):
        count = 0
        while count < len(wanted) and row[count] == wanted[count]:
            count += 1
        if count > most:
            best, most = block, count
    assert tokens.best(range(len(rows)), wanted) == (best, most)


@pytest.mark.parametrize("token", [-1, 1 << 24])
def test_refuses_what_does_not_fit(token: int) -> None:
    """A token id that three bytes cannot hold is never stored as another one."""
    tokens = BlockTokens(1, 2)
    with pytest.raises(InvariantError, match="token id"):
        tokens.put(BlockId(0), [1, token])
    assert tokens.get(BlockId(0)) == [0, 0]
