"""What a step is told of those that ask for more: end tokens that come too early, grammars' masks, penalties."""

from collections.abc import Sequence

import numpy as np
import pytest

from engine.request import FinishReason
from engine.scheduler.options import choosable
from engine.step import StepPlan
from tests.engine.world import VOCAB_SIZE, World

END = 7


class Alphabet:
    """A grammar whose outputs are of some tokens, so many of them, and then the end."""

    def __init__(self, letters: Sequence[int], length: int) -> None:
        self._letters, self._length = letters, length

    def mask(self, tokens: Sequence[int], num_prompt: int) -> np.ndarray:
        """See `Constraint.mask`."""
        done = len(tokens) - num_prompt >= self._length
        return mask_of([END] if done else self._letters)


def mask_of(tokens: Sequence[int]) -> np.ndarray:
    """Return a mask that allows these."""
    mask = np.zeros(-(-VOCAB_SIZE // 32), dtype=np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


def banned(plan: StepPlan | None) -> frozenset[int]:
    """Return what the only sequence of a plan may not choose."""
    assert plan is not None
    (part,) = plan.sequences
    return frozenset() if part.options is None else part.options.banned


def test_plain_requests_have_no_options() -> None:
    """Nor is anything worked out for them."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", 9, 4, temperature=0.7, top_p=0.9, min_p=0.1, stop_token_ids=frozenset((3,)))
    while world.step():
        assert world.plan is None or all(part.options is None for part in world.plan.sequences)
    assert world.finished[request] is FinishReason.LENGTH


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("min_tokens", [1, 4, 9])
def test_end_tokens_are_banned_before_min_tokens(min_tokens: int, ahead: bool) -> None:
    """The model would end at once; it does with the first token that it may, and the steps are planned ahead."""
    world = World(eos=(END,), ahead=ahead)
    world.policy("minnow")
    request = world.submit("minnow", 9, 40, min_tokens=min_tokens, logit_bias=((END, 100.0),), num_logprobs=0)
    num_ahead = 0
    while world.step():
        if world.plan is not None:
            num_ahead += min(world.plan.sequences[0].token_ids) < 0
    assert len(world.tokens[request]) == min_tokens + 1
    assert world.tokens[request].index(END) == min_tokens
    assert world.finished[request] is FinishReason.STOP
    assert (num_ahead > 0) == ahead
    world.assert_exact(request)


def test_stop_ids_are_banned_as_end_tokens_are() -> None:
    """A request's own count too; with ignore_eos only those do."""
    world = World(eos=(END,))
    world.policy("minnow")
    world.submit("minnow", 9, 4, min_tokens=2, stop_token_ids=frozenset((3, 4)))
    world.step()
    assert banned(world.plan) == {3, 4, END}
    world.step()
    assert banned(world.plan) == {3, 4, END}
    world.step()
    assert banned(world.plan) == frozenset()
    world.run()
    world.submit("minnow", 9, 4, min_tokens=2, stop_token_ids=frozenset((3, 4)), ignore_eos=True)
    world.step()
    assert banned(world.plan) == {3, 4}
    world.run()


def test_an_unfinished_prefill_is_told_nothing() -> None:
    """There is no choice to change yet."""
    world = World(budget=4)
    world.policy("minnow")
    world.submit(
        "minnow", 10, 4, min_tokens=2, stop_token_ids=frozenset((3,)), presence_penalty=1.0, logit_bias=((1, 2.0),)
    )
    for _ in range(2):
        world.step()
        assert world.plan is not None
        options = world.plan.sequences[0].options
        assert options is not None
        assert (options.banned, options.changes, options.mask) == (frozenset(), None, None)
    world.step()
    assert banned(world.plan) == {3}
    world.run()


def test_a_grammar_is_stronger_than_min_tokens() -> None:
    """Where nothing but the end is allowed any more, it is not banned: there would be nothing to choose."""
    world = World(eos=(END,))
    world.policy("minnow")
    request = world.submit("minnow", 9, 30, min_tokens=20)
    sequence = world.scheduler.roster.sequences[request]
    sequence.constraint = Alphabet((40, 41, 42, 900), 5)
    while world.step():
        pass
    assert world.finished[request] is FinishReason.STOP
    assert len(world.tokens[request]) == 6
    assert set(world.tokens[request][:5]) <= {40, 41, 42, 900}
    assert world.tokens[request][-1] == END


def test_a_mask_that_allows_nothing_allows_the_end() -> None:
    """No grammar should return one; the least bad is that the output ends."""
    nothing = mask_of([])
    mask, none = choosable(nothing, frozenset((END,)), frozenset((END, 900, 10**6)))
    assert mask is not None
    assert (mask.tolist(), none) == (mask_of([END, 900]).tolist(), frozenset())
    assert choosable(nothing, frozenset(), frozenset()) == (None, frozenset())
    assert nothing.tolist() == mask_of([]).tolist()


def test_bans_stay_where_something_is_left() -> None:
    """One other allowed token is enough."""
    both = mask_of([END, 999])
    assert choosable(both, frozenset((END,)), frozenset((END,))) == (both, frozenset((END,)))
    assert choosable(both, frozenset((END, 999)), frozenset((END, 999))) == (both, frozenset())
