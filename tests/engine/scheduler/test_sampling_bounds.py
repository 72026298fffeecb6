"""What no model could sample by is refused with the field; what is at the edge is served."""

import math

import pytest

from engine.request import BeamParams, Grammar, GrammarKind, RefusalCode
from tests.engine.world import VOCAB_SIZE, World

NAN = math.nan
MANY_BIASES = tuple((token, 1.0) for token in range(VOCAB_SIZE))


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"min_p": -0.01}, "min_p"),
        ({"min_p": 1.01}, "min_p"),
        ({"min_p": NAN}, "min_p"),
        ({"frequency_penalty": 2.01}, "frequency_penalty"),
        ({"frequency_penalty": NAN}, "frequency_penalty"),
        ({"presence_penalty": -2.01}, "presence_penalty"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 10.1}, "repetition_penalty"),
        ({"repetition_penalty": NAN}, "repetition_penalty"),
        ({"logit_bias": ((VOCAB_SIZE, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((5, 100.5),)}, "logit_bias"),
        ({"logit_bias": ((5, NAN),)}, "logit_bias"),
        ({"logit_bias": ((5, -math.inf),)}, "logit_bias"),
        ({"logit_bias": ((5, 1.0), (5, 2.0))}, "logit_bias"),
        ({"logit_bias": MANY_BIASES + MANY_BIASES[:100]}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"stop_token_ids": frozenset(range(1025))}, "stop_token_ids"),
        ({"prompt_logprobs": 129}, "prompt_logprobs"),
    ],
)
def test_refuses_with_the_field(sampling: dict[str, object], field: str) -> None:
    """The message names it, and what is allowed."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", 5, **({"max_tokens": 20} | sampling))  # type: ignore[arg-type]
    assert not world.step()
    refusal = world.refused[request]
    assert (refusal.code, refusal.field) == (RefusalCode.INVALID, field)
    assert refusal.message.startswith(field)
    world.assert_empty()


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_p": 1.0},
        {"frequency_penalty": -2.0, "presence_penalty": 2.0},
        {"repetition_penalty": 0.009999999776482582},  # 0.01 that has been a float32
        {"repetition_penalty": 10.0},
        {"logit_bias": MANY_BIASES},
        {"logit_bias": ((0, -100.0), (VOCAB_SIZE - 1, 100.0))},
        {"min_tokens": 8, "max_tokens": 8},
        {"min_tokens": 300, "max_tokens": 0},
        {"stop_token_ids": frozenset(range(5000, 6024)), "min_tokens": 3},
    ],
)
def test_serves_what_is_at_the_edge(sampling: dict[str, object]) -> None:
    """To the end, exactly."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", 5, **({"max_tokens": 20} | sampling))  # type: ignore[arg-type]
    world.run()
    assert request in world.finished
    world.assert_exact(request)


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"min_p": 0.1}, "min_p"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": -0.5}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": ((5, 1.0),)}, "logit_bias"),
        ({"grammar": Grammar(GrammarKind.REGEX, "a+")}, "grammar"),
    ],
)
def test_a_beam_search_ignores_nothing(sampling: dict[str, object], field: str) -> None:
    """What would change a choice is refused rather than left out."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", 5, 5, beams=BeamParams(width=2), **sampling)
    assert not world.step()
    refusal = world.refused[request]
    assert (refusal.code, refusal.field) == (RefusalCode.INVALID, field)
    assert field in refusal.message
    world.assert_empty()
