"""What bias and penalties make of a sequence's tokens, step by step: what its whole history makes of them at once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import SamplingParams
from engine.scheduler.history import History, Start
from engine.step import LogitChanges
from tests.engine.shaping_reference import shape

VOCAB = 200
TOKENS = st.integers(0, VOCAB - 1)
PENALTIES = st.floats(-2.0, 2.0)


def history_of(sampling: SamplingParams, prompt: list[int]) -> History:
    """Return the history of a request's only output."""
    return History(sampling, Start.of(sampling, prompt))


def applied(logits: np.ndarray, changes: LogitChanges | None) -> np.ndarray:
    """Return changed logits, as `LogitChanges` says."""
    logits = logits.copy()
    if changes is not None:
        bias, repetition, penalty = changes.values
        some = logits[changes.token_ids] + bias
        logits[changes.token_ids] = np.where(some > 0, some / repetition, some * repetition) - penalty
    return logits


@settings(max_examples=200)
@given(
    frequency=PENALTIES,
    presence=PENALTIES,
    repetition=st.just(1.0) | st.floats(0.01, 10.0),
    bias=st.dictionaries(TOKENS, st.floats(-100.0, 100.0, width=32), max_size=5),
    prompt=st.lists(TOKENS, min_size=1, max_size=30),
    output=st.lists(TOKENS, max_size=300),
    steps=st.lists(st.integers(0, 40), max_size=20),
    seed=st.integers(0, 99),
)
def test_is_that_of_the_whole_history(
    frequency: float,
    presence: float,
    repetition: float,
    bias: dict[int, float],
    prompt: list[int],
    output: list[int],
    steps: list[int],
    seed: int,
) -> None:
    """However many tokens come between two looks, each look gives what counting all of them anew gives, to the bit."""
    sampling = SamplingParams(
        frequency_penalty=frequency,
        presence_penalty=presence,
        repetition_penalty=repetition,
        logit_bias=tuple(bias.items()),
    )
    logits = np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)
    history, tokens, num_seen = history_of(sampling, prompt), list(prompt), 0
    for count in [0, *steps, len(output)]:
        tokens += output[num_seen : num_seen + count]
        num_seen = min(len(output), num_seen + count)
        changes = history.changes(tokens)
        assert changes is None or len(set(changes.token_ids.tolist())) == len(changes.token_ids)
        expected = shape(logits, sampling, prompt, output[:num_seen])
        assert applied(logits, changes).tolist() == expected.tolist()


def test_nothing_to_change_is_none() -> None:
    """Before the first token of the output, frequency and presence say nothing."""
    history = history_of(SamplingParams(frequency_penalty=1.0, presence_penalty=1.0), [1, 2, 3])
    assert history.changes([1, 2, 3]) is None
    changes = history.changes([1, 2, 3, 3])
    assert changes is not None
    assert changes.token_ids.tolist() == [3]
    assert changes.values.tolist() == [[0.0], [1.0], [2.0]]


def test_a_bias_looks_at_no_token() -> None:
    """It is the same whatever has been generated, so that a step may be planned before its token is known."""
    history = history_of(SamplingParams(logit_bias=((7, 2.5),)), [7, 7])
    assert not SamplingParams(logit_bias=((7, 2.5),)).looks_back
    for tokens in ([7, 7], [7, 7, 7, 8]):
        changes = history.changes(tokens)
        assert changes is not None
        assert (changes.token_ids.tolist(), changes.values.tolist()) == ([7], [[2.5], [1.0], [0.0]])


def test_grows_with_many_tokens() -> None:
    """Thousands of distinct tokens find room, each in its place."""
    history = history_of(SamplingParams(presence_penalty=0.5, repetition_penalty=2.0), list(range(100)))
    tokens = list(range(100))
    for token in range(50, 5000, 3):
        tokens.append(token)
        changes = history.changes(tokens)
    assert changes is not None
    assert sorted(changes.token_ids.tolist()) == sorted({*tokens})
    penalised = set(changes.token_ids[changes.values[2] == 0.5].tolist())
    assert penalised == set(range(50, 5000, 3))
    assert bool((changes.values[1] == 2.0).all())


@given(
    bias=st.dictionaries(TOKENS, st.floats(-100.0, 100.0, width=32), max_size=3),
    prompt=st.lists(TOKENS, min_size=1, max_size=20),
    outputs=st.lists(st.lists(TOKENS, max_size=90), min_size=2, max_size=4),
)
def test_outputs_of_a_request_share_their_beginning_alone(
    bias: dict[int, float], prompt: list[int], outputs: list[list[int]]
) -> None:
    """Each goes on as if it were the only one, and leaves the beginning as it was."""
    sampling = SamplingParams(
        frequency_penalty=0.5, presence_penalty=-1.0, repetition_penalty=1.5, logit_bias=tuple(bias.items())
    )
    start = Start.of(sampling, prompt)
    before = start.ids.tolist(), start.values.tolist(), dict(start.places)
    histories = [History(sampling, start) for _ in outputs]
    logits = np.linspace(-3, 3, VOCAB, dtype=np.float32)
    for place in range(max(map(len, outputs)) + 1):
        for history, output in zip(histories, outputs, strict=True):
            changes = history.changes([*prompt, *output[:place]])
            assert applied(logits, changes).tolist() == shape(logits, sampling, prompt, output[:place]).tolist()
    assert before == (start.ids.tolist(), start.values.tolist(), dict(start.places))
